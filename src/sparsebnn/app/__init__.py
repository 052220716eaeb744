"""The command line and the HTML report: files in, run folders and pages out. No numerics."""
