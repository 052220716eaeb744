/* The functions of exported models. Each is copied into a model's source if the model uses it.
   They work on one row; x and y do not overlap. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* == scaled == */
static float scaled(double value, double centre, double scale) {
  return isnan(value) ? 0.0f : (float)((value - centre) / scale);
}

/* == level_of == */
/* The place of a level, -1 for an unknown one, -2 for a missing one. */
static int level_of(const char *value, const char *const *known, int count) {
  if (value == NULL || value[0] == 0) return -2;
  for (int i = 0; i < count; ++i)
    if (strcmp(value, known[i]) == 0) return i;
  return -1;
}

/* == dense == */
static void dense(const float *x, float *y, const float *weight, const float *bias, uint32_t in,
                  uint32_t out) {
  for (uint32_t o = 0; o < out; ++o) {
    float sum = bias[o];
    for (uint32_t i = 0; i < in; ++i) sum += weight[o * in + i] * x[i];
    y[o] = sum;
  }
}

/* == sparse == */
static void sparse(const float *x, float *y, const uint32_t *start, const uint16_t *column,
                   const float *weight, const float *bias, uint32_t out) {
  for (uint32_t o = 0; o < out; ++o) {
    float sum = bias[o];
    for (uint32_t k = start[o]; k < start[o + 1]; ++k) sum += weight[k] * x[column[k]];
    y[o] = sum;
  }
}

/* == pad == */
static void pad(const float *x, float *y, uint32_t channels, uint32_t h, uint32_t w, uint32_t ph,
                uint32_t pw) {
  const uint32_t width = w + 2 * pw, size = (h + 2 * ph) * width;
  for (uint32_t i = 0; i < channels * size; ++i) y[i] = 0.0f;
  for (uint32_t c = 0; c < channels; ++c)
    for (uint32_t i = 0; i < h; ++i)
      for (uint32_t j = 0; j < w; ++j) y[c * size + (i + ph) * width + j + pw] = x[(c * h + i) * w + j];
}

/* == convolution == */
/* Every weight adds a shifted copy of its input channel. */
static void convolution(const float *x, float *y, const uint32_t *start, const uint32_t *offset,
                        const float *weight, const float *bias, uint32_t out, uint32_t oh, uint32_t ow,
                        uint32_t down, uint32_t right) {
  for (uint32_t o = 0; o < out; ++o) {
    float *to = y + o * oh * ow;
    for (uint32_t i = 0; i < oh * ow; ++i) to[i] = bias[o];
    for (uint32_t k = start[o]; k < start[o + 1]; ++k)
      for (uint32_t i = 0; i < oh; ++i) {
        const float *from = x + offset[k] + i * down;
        for (uint32_t j = 0; j < ow; ++j) to[i * ow + j] += weight[k] * from[j * right];
      }
  }
}

/* == average_pool == */
static void average_pool(const float *x, float *y, uint32_t channels, uint32_t h, uint32_t w, uint32_t oh,
                         uint32_t ow, uint32_t kh, uint32_t kw, uint32_t sh, uint32_t sw) {
  for (uint32_t c = 0; c < channels; ++c)
    for (uint32_t i = 0; i < oh; ++i)
      for (uint32_t j = 0; j < ow; ++j) {
        float sum = 0.0f;
        for (uint32_t a = 0; a < kh; ++a)
          for (uint32_t b = 0; b < kw; ++b) sum += x[(c * h + i * sh + a) * w + j * sw + b];
        y[(c * oh + i) * ow + j] = sum / (float)(kh * kw);
      }
}

/* == max_pool == */
static void max_pool(const float *x, float *y, uint32_t channels, uint32_t h, uint32_t w, uint32_t oh,
                     uint32_t ow, uint32_t kh, uint32_t kw, uint32_t sh, uint32_t sw) {
  for (uint32_t c = 0; c < channels; ++c)
    for (uint32_t i = 0; i < oh; ++i)
      for (uint32_t j = 0; j < ow; ++j) {
        float most = x[(c * h + i * sh) * w + j * sw];
        for (uint32_t a = 0; a < kh; ++a)
          for (uint32_t b = 0; b < kw; ++b) {
            const float value = x[(c * h + i * sh + a) * w + j * sw + b];
            if (value > most) most = value;
          }
        y[(c * oh + i) * ow + j] = most;
      }
}

/* == take == */
static void take(const float *x, float *y, const uint32_t *index, uint32_t count, uint32_t size) {
  for (uint32_t i = 0; i < count; ++i)
    for (uint32_t j = 0; j < size; ++j) y[i * size + j] = x[index[i] * size + j];
}

/* == relu == */
static void relu(float *x, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

/* == leaky_relu == */
static void leaky_relu(float *x, uint32_t n, float slope) {
  for (uint32_t i = 0; i < n; ++i) x[i] = x[i] > 0.0f ? x[i] : slope * x[i];
}

/* == gelu == */
static void gelu(float *x, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

/* == gelu_tanh == */
static void gelu_tanh(float *x, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i)
    x[i] = 0.5f * x[i] * (1.0f + tanhf(0.79788456f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

/* == silu == */
static void silu(float *x, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) x[i] = x[i] / (1.0f + expf(-x[i]));
}

/* == sigmoid == */
static void sigmoid(float *x, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) x[i] = 1.0f / (1.0f + expf(-x[i]));
}

/* == hyperbolic == */
static void hyperbolic(float *x, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) x[i] = tanhf(x[i]);
}
