(() => {
  "use strict";
  const net = document.getElementById("network");
  if (net) {
    const said = document.getElementById("network-said");
    const rest = said.textContent;
    const units = new Map([...net.querySelectorAll(".unit")].map((u) => [u.dataset.unit, u]));
    const ahead = new Map(), back = new Map();
    const add = (map, key, entry) => (map.get(key) || map.set(key, []).get(key)).push(entry);
    for (const edge of net.querySelectorAll(".edge")) {
      const [layer, source, target] = edge.dataset.edge.split(" ").map(Number);
      const from = layer + "-" + source, to = layer + 1 + "-" + target;
      add(ahead, from, [edge, to]);
      add(back, to, [edge, from]);
    }
    // The slider shows the strongest connections; the buttons change the size.
    const filter = document.getElementById("network-filter"), count = document.getElementById("network-count");
    const sift = (most) => {
      const seen = new Set();
      for (const edge of net.querySelectorAll(".edge")) {
        const weak = most === null ? edge.classList.contains("weak") : Number(edge.dataset.rank) > most;
        edge.classList.toggle("weak", weak);
        const [layer, source, target] = edge.dataset.edge.split(" ").map(Number);
        if (!weak) { seen.add(layer + "-" + source); seen.add(layer + 1 + "-" + target); }
      }
      units.forEach((unit, key) => unit.classList.toggle("faint", !seen.has(key)));
    };
    sift(null);
    filter.addEventListener("input", () => {
      sift(Number(filter.value));
      count.textContent = filter.value + " of " + filter.max;
    });
    let zoom = 1;
    const resize = (factor) => {
      zoom = Math.min(4, Math.max(0.5, zoom * factor));
      net.style.width = 100 * zoom + "%";
      net.style.maxWidth = "none";
      net.style.minWidth = 44 * zoom + "rem";
    };
    document.getElementById("network-in").addEventListener("click", () => resize(1.25));
    document.getElementById("network-out").addEventListener("click", () => resize(0.8));
    let pinned = null;
    // Chromium makes an SVG with a focus listener a stop for the Tab key, so its parent listens.
    const stage = net.parentElement;
    const walk = (start, map) => {
      const seen = new Set([start]), queue = [start];
      while (queue.length) {
        for (const [edge, next] of map.get(queue.pop()) || []) {
          edge.classList.add("on");
          if (!seen.has(next)) { seen.add(next); queue.push(next); }
        }
      }
      seen.forEach((key) => units.get(key).classList.add("on"));
    };
    const clear = () => {
      net.classList.remove("focused");
      net.querySelectorAll(".on").forEach((each) => each.classList.remove("on"));
      said.textContent = rest;
    };
    const show = (unit) => {
      clear();
      if (!unit) return;
      net.classList.add("focused");
      walk(unit.dataset.unit, ahead);
      walk(unit.dataset.unit, back);
      said.textContent = unit.dataset.note;
    };
    const pin = (unit) => {
      if (pinned) pinned.setAttribute("aria-pressed", "false");
      pinned = unit === pinned ? null : unit;
      if (pinned) pinned.setAttribute("aria-pressed", "true");
      show(pinned);
    };
    const of = (event) => event.target.closest && event.target.closest(".unit");
    stage.addEventListener("pointerover", (event) => { if (of(event)) show(of(event)); });
    stage.addEventListener("pointerout", (event) => { if (of(event)) show(pinned); });
    stage.addEventListener("focusin", (event) => { if (of(event)) show(of(event)); });
    stage.addEventListener("focusout", () => show(pinned));
    stage.addEventListener("click", (event) => {
      const unit = of(event);
      if (!unit) pin(pinned);
      else if (unit.hasAttribute("aria-pressed")) pin(unit);
    });
    // One stop for the Tab key in each column; the arrows move within it.
    stage.addEventListener("keydown", (event) => {
      const unit = of(event);
      if (!unit) return;
      const column = [...units.values()].filter((u) => u.dataset.column === unit.dataset.column);
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        const next = column[(column.indexOf(unit) + step + column.length) % column.length];
        unit.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      } else if (event.key === "Enter" || event.key === " ") pin(unit);
      else if (event.key === "Escape") { if (pinned) pin(pinned); else show(null); }
      else return;
      event.preventDefault();
    });
  }
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((each) => { each.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((each) => { each.open = false; }));
})();
