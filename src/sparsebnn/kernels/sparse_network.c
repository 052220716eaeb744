/* Evaluate a chain of sparse layers. C99, freestanding: no allocation, no library calls, no global state.
 *
 * A network is a table of ops (sb_op) over constant arrays. Rows are evaluated one at a time, or SB_BLOCK at
 * a time with the rows innermost, so that each weight is read once per block and the inner loop is a vector
 * operation. The caller passes sb_floats(network) floats of scratch per thread.
 *
 * A convolution adds, for every weight that is not zero, a shifted copy of the input to a plane of outputs.
 * Its input is first arranged in planes that hold the border and, for strides above 1, one phase of the
 * stride each, so that every weight is one offset (index) and the shifted copy is contiguous.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifndef SB_API
#define SB_API
#endif
#define SB_BLOCK 16

enum { SB_LINEAR, SB_CONV, SB_AVERAGE, SB_MAXIMUM, SB_ACTIVATION, SB_TAKE };
enum { SB_IDENTITY, SB_RELU, SB_LEAKY_RELU, SB_GELU, SB_GELU_TANH, SB_SILU, SB_TANH, SB_SIGMOID };
enum { SB_ZEROS, SB_REFLECT, SB_REPLICATE, SB_CIRCULAR };

typedef struct {
    const float *value;      /* weights of output o: entries start[o] to start[o + 1] */
    const uint16_t *index16; /* their inputs: columns, or offsets into the arranged planes; */
    const uint32_t *index32; /* one of the two is NULL. SB_TAKE: the channels it takes */
    const uint32_t *start;
    const float *bias;
    const int8_t *level;        /* quantized: weights are level * scale / (scale of the input) */
    const int32_t *bias_level;  /* quantized: the bias, less the part of the input's zero point */
    const float *scale;         /* quantized: one sum of levels in units of the output, per output */
    int32_t kind, activation;
    float slope;                     /* of SB_LEAKY_RELU below 0 */
    float inverse;                   /* quantized: levels of the output per unit */
    int32_t zero_in, zero_out;       /* quantized: levels that stand for 0 */
    int32_t channels, height, width; /* of the input */
    int32_t outputs, out_height, out_width;
    int32_t kernel_height, kernel_width, stride_height, stride_width;
    int32_t dilation_height, dilation_width, pad_top, pad_left;
    int32_t border;                    /* SB_CONV: what is beyond the edge */
    int32_t plane_height, plane_width; /* SB_CONV: size of an arranged plane */
    int32_t carried;                   /* SB_LINEAR: last inputs that follow the units as outputs, unchanged */
} sb_op;

typedef struct {
    const sb_op *ops;
    int32_t n_ops, inputs, outputs;
    int32_t largest;                /* values that any op reads or writes for a row */
    int32_t arranged;               /* values in the arranged planes of any convolution */
    int32_t plane;                  /* sums in the plane of outputs of any convolution */
    int32_t quantized, block;       /* block: 1, or SB_BLOCK to evaluate as many rows at a time */
    float inverse_in;               /* quantized: levels of the input per unit */
    int32_t zero_in;
} sb_network;

/* ---- activations --------------------------------------------------------------------------------- */

/* exp(x) with a relative error below 2e-7, for x between -87 and 87; beyond these the value there. */
static inline float sb_exp(float given)
{
    union { int32_t bits; float value; } power;
    const float below = given < 87.0f ? given : 87.0f;
    const float x = below > -87.0f ? below : -87.0f;
    float fraction, result;
    int32_t whole;
    whole = (int32_t)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
    fraction = (x - (float)whole * 0.693359375f) + (float)whole * 2.12194440e-4f;
    result = 1.3981999e-3f;
    result = result * fraction + 8.3334519e-3f;
    result = result * fraction + 4.1665796e-2f;
    result = result * fraction + 1.6666665e-1f;
    result = result * fraction + 0.5f;
    result = result * fraction * fraction + fraction + 1.0f;
    power.bits = (whole + 127) * 8388608;
    return given != given ? given : result * power.value;
}

static inline float sb_sigmoid(float x)
{
    return 1.0f / (1.0f + sb_exp(-x));
}

static inline float sb_tanh(float x)
{
    const float square = x * x;
    const float near = x * (1.0f - square * (0.33333333f - square * (0.13333333f - square * 0.053968254f)));
    const float far = 1.0f - 2.0f / (sb_exp(2.0f * x) + 1.0f);
    return square < 0.01f ? near : far;
}

/* Abramowitz and Stegun 7.1.26; the absolute error is below 5e-7. */
static inline float sb_erf(float x)
{
    const float size = x < 0.0f ? -x : x;
    const float t = 1.0f / (1.0f + 0.3275911f * size);
    float sum = 1.061405429f;
    sum = sum * t - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = (sum * t + 0.254829592f) * t;
    sum = 1.0f - sum * sb_exp(-size * size);
    return x < 0.0f ? -sum : sum;
}

static void sb_activate(const sb_op *op, float *y, size_t n)
{
    const float slope = op->slope;
    size_t i;
    switch (op->activation) {
    case SB_RELU:
        for (i = 0; i < n; ++i) y[i] = y[i] < 0.0f ? 0.0f : y[i];
        break;
    case SB_LEAKY_RELU:
        for (i = 0; i < n; ++i) y[i] = y[i] < 0.0f ? slope * y[i] : y[i];
        break;
    case SB_GELU:
        for (i = 0; i < n; ++i) y[i] = 0.5f * y[i] * (1.0f + sb_erf(0.70710678f * y[i]));
        break;
    case SB_GELU_TANH:
        for (i = 0; i < n; ++i)
            y[i] = 0.5f * y[i] * (1.0f + sb_tanh(0.79788456f * (y[i] + 0.044715f * y[i] * y[i] * y[i])));
        break;
    case SB_SILU:
        for (i = 0; i < n; ++i) y[i] = y[i] * sb_sigmoid(y[i]);
        break;
    case SB_TANH:
        for (i = 0; i < n; ++i) y[i] = sb_tanh(y[i]);
        break;
    case SB_SIGMOID:
        for (i = 0; i < n; ++i) y[i] = sb_sigmoid(y[i]);
        break;
    default:
        break;
    }
}

/* ---- layout -------------------------------------------------------------------------------------- */

static inline size_t sb_size_in(const sb_op *op)
{
    return (size_t)op->channels * (size_t)op->height * (size_t)op->width;
}

static inline size_t sb_size_out(const sb_op *op)
{
    return (size_t)op->outputs * (size_t)op->out_height * (size_t)op->out_width;
}

/* The outputs of SB_LINEAR that have weights. */
static inline size_t sb_units(const sb_op *op)
{
    return (size_t)(op->outputs - op->carried);
}

static inline size_t sb_index(const sb_op *op, size_t k)
{
    return op->index16 ? op->index16[k] : op->index32[k];
}

/* Where a place beyond the edge takes its value from; -1: nowhere, it is zero. */
static inline int32_t sb_source(int32_t at, int32_t size, int32_t border)
{
    if (at >= 0 && at < size) return at;
    switch (border) {
    case SB_REFLECT: return at < 0 ? -at : 2 * (size - 1) - at;
    case SB_REPLICATE: return at < 0 ? 0 : size - 1;
    case SB_CIRCULAR: return at < 0 ? at + size : at - size;
    default: return -1;
    }
}

/* rows x features to features x SB_BLOCK; rows that are missing are zeros. */
#define SB_TRANSPOSE(NAME, TYPE)                                                                         \
    static void NAME(const TYPE *x, size_t features, size_t rows, TYPE *y)                               \
    {                                                                                                    \
        size_t first, j, r;                                                                              \
        for (first = 0; first < features; first += 16) {                                                 \
            const size_t last = first + 16 < features ? first + 16 : features;                           \
            for (r = 0; r < rows; ++r)                                                                   \
                for (j = first; j < last; ++j) y[j * SB_BLOCK + r] = x[r * features + j];                \
            for (; r < SB_BLOCK; ++r)                                                                    \
                for (j = first; j < last; ++j) y[j * SB_BLOCK + r] = 0;                                  \
        }                                                                                                \
    }
SB_TRANSPOSE(sb_transpose, float)

#define SB_TAKE_FROM(NAME, TYPE)                                                                         \
    static void NAME(const sb_op *op, const TYPE *x, size_t rows, TYPE *y)                               \
    {                                                                                                    \
        const size_t plane = (size_t)op->height * (size_t)op->width;                                     \
        size_t r, c, i;                                                                                  \
        for (r = 0; r < rows; ++r)                                                                       \
            for (c = 0; c < (size_t)op->outputs; ++c) {                                                  \
                const TYPE *in = x + r * sb_size_in(op) + sb_index(op, c) * plane;                       \
                for (i = 0; i < plane; ++i) y[r * sb_size_out(op) + c * plane + i] = in[i];              \
            }                                                                                            \
    }
SB_TAKE_FROM(sb_take, float)

/* The last inputs of SB_LINEAR, of one row or of SB_BLOCK rows, after its units. */
#define SB_CARRY(NAME, TYPE)                                                                             \
    static void NAME(const sb_op *op, const TYPE *x, size_t rows, TYPE *y)                               \
    {                                                                                                    \
        const size_t n = (size_t)op->carried * rows;                                                     \
        size_t i;                                                                                        \
        x += (size_t)(op->channels - op->carried) * rows;                                                \
        y += sb_units(op) * rows;                                                                        \
        for (i = 0; i < n; ++i) y[i] = x[i];                                                             \
    }
SB_CARRY(sb_carry, float)

/* ---- layers -------------------------------------------------------------------------------------- */

#define SB_LINEAR_ROW(NAME, INDEX)                                                                       \
    static void NAME(const sb_op *op, const INDEX *index, const float *x, float *y)                      \
    {                                                                                                    \
        const float *value = op->value;                                                                  \
        size_t o;                                                                                        \
        for (o = 0; o < sb_units(op); ++o) {                                                             \
            size_t k = op->start[o];                                                                     \
            const size_t end = op->start[o + 1];                                                         \
            float a = op->bias[o], b = 0.0f, c = 0.0f, d = 0.0f;                                         \
            for (; k + 4 <= end; k += 4) {                                                               \
                a += value[k] * x[index[k]];                                                             \
                b += value[k + 1] * x[index[k + 1]];                                                     \
                c += value[k + 2] * x[index[k + 2]];                                                     \
                d += value[k + 3] * x[index[k + 3]];                                                     \
            }                                                                                            \
            for (; k < end; ++k) a += value[k] * x[index[k]];                                            \
            y[o] = (a + b) + (c + d);                                                                    \
        }                                                                                                \
    }
SB_LINEAR_ROW(sb_linear_row16, uint16_t)
SB_LINEAR_ROW(sb_linear_row32, uint32_t)

#define SB_LINEAR_BLOCK(NAME, INDEX)                                                                     \
    static void NAME(const sb_op *op, const INDEX *index, const float *x, float *restrict y)             \
    {                                                                                                    \
        size_t o, k;                                                                                     \
        int r;                                                                                           \
        for (o = 0; o < sb_units(op); ++o) {                                                             \
            const size_t end = op->start[o + 1];                                                         \
            float sum[SB_BLOCK];                                                                         \
            for (r = 0; r < SB_BLOCK; ++r) sum[r] = op->bias[o];                                         \
            for (k = op->start[o]; k < end; ++k) {                                                       \
                const float w = op->value[k], *in = x + (size_t)index[k] * SB_BLOCK;                     \
                for (r = 0; r < SB_BLOCK; ++r) sum[r] += w * in[r];                                      \
            }                                                                                            \
            for (r = 0; r < SB_BLOCK; ++r) y[o * SB_BLOCK + r] = sum[r];                                 \
        }                                                                                                \
    }
SB_LINEAR_BLOCK(sb_linear_block16, uint16_t)
SB_LINEAR_BLOCK(sb_linear_block32, uint32_t)

static void sb_linear(const sb_op *op, const float *x, int block, float *y)
{
    if (block && op->index16) sb_linear_block16(op, op->index16, x, y);
    else if (block) sb_linear_block32(op, op->index32, x, y);
    else if (op->index16) sb_linear_row16(op, op->index16, x, y);
    else sb_linear_row32(op, op->index32, x, y);
    sb_activate(op, y, sb_units(op) * (block ? SB_BLOCK : 1));
    sb_carry(op, x, block ? SB_BLOCK : 1, y);
}

/* The input with its border, as channels x phases of the stride x plane_height x plane_width. */
#define SB_ARRANGE(NAME, TYPE)                                                                           \
    static void NAME(const sb_op *op, const TYPE *x, TYPE zero, TYPE *y)                                 \
    {                                                                                                    \
        int32_t c, down, right, h, w;                                                                    \
        for (c = 0; c < op->channels; ++c)                                                               \
            for (down = 0; down < op->stride_height; ++down)                                             \
                for (right = 0; right < op->stride_width; ++right)                                       \
                    for (h = 0; h < op->plane_height; ++h) {                                             \
                        const int32_t row = sb_source(h * op->stride_height + down - op->pad_top,        \
                                                      op->height, op->border);                           \
                        const TYPE *in = x + ((size_t)c * (size_t)op->height                             \
                                              + (size_t)(row < 0 || row >= op->height ? 0 : row))        \
                                                 * (size_t)op->width;                                    \
                        for (w = 0; w < op->plane_width; ++w) {                                          \
                            const int32_t at = sb_source(w * op->stride_width + right - op->pad_left,    \
                                                         op->width, op->border);                         \
                            const int outside = row < 0 || row >= op->height || at < 0 || at >= op->width; \
                            *y++ = outside ? zero : in[at];                                              \
                        }                                                                                \
                    }                                                                                    \
    }
SB_ARRANGE(sb_arrange, float)

static inline int sb_is_arranged(const sb_op *op)
{
    return op->plane_height != op->height || op->plane_width != op->width || op->pad_top || op->pad_left
           || op->stride_height != 1 || op->stride_width != 1;
}

/* Sums over the weights of output o in a plane whose rows are plane_width apart, SB_BLOCK places at a time;
 * the last block overlaps the one before it. */
#define SB_PLANE(NAME, TYPE, SUM, WEIGHTS, BIAS)                                                         \
    static void NAME(const sb_op *op, size_t o, const TYPE *x, float *restrict y)                        \
    {                                                                                                    \
        const size_t begin = op->start[o], end = op->start[o + 1];                                       \
        const size_t n = (size_t)(op->out_height - 1) * (size_t)op->plane_width + (size_t)op->out_width; \
        size_t at, k, r;                                                                                 \
        for (at = 0; at < n; at += SB_BLOCK) {                                                           \
            const size_t first = at + SB_BLOCK <= n || n < SB_BLOCK ? at : n - SB_BLOCK;                 \
            SUM sum[SB_BLOCK];                                                                           \
            for (r = 0; r < SB_BLOCK; ++r) sum[r] = op->BIAS[o];                                         \
            if (n < SB_BLOCK)                                                                            \
                for (k = begin; k < end; ++k) {                                                          \
                    const TYPE *in = x + sb_index(op, k);                                                \
                    for (r = 0; r < n; ++r) sum[r] += op->WEIGHTS[k] * (SUM)in[r];                       \
                }                                                                                        \
            else                                                                                         \
                for (k = begin; k < end; ++k) {                                                          \
                    const TYPE *in = x + first + sb_index(op, k);                                        \
                    for (r = 0; r < SB_BLOCK; ++r) sum[r] += op->WEIGHTS[k] * (SUM)in[r];                \
                }                                                                                        \
            for (r = 0; r < SB_BLOCK && r < n; ++r) y[first + r] = (float)sum[r];                        \
        }                                                                                                \
    }
SB_PLANE(sb_plane, float, float, value, bias)

static void sb_conv(const sb_op *op, const float *x, float *arranged, float *plane, float *y)
{
    size_t o, h, w;
    if (sb_is_arranged(op)) {
        sb_arrange(op, x, 0.0f, arranged);
        x = arranged;
    }
    for (o = 0; o < (size_t)op->outputs; ++o) {
        sb_plane(op, o, x, plane);
        for (h = 0; h < (size_t)op->out_height; ++h) {
            const float *in = plane + h * (size_t)op->plane_width;
            float *out = y + (o * (size_t)op->out_height + h) * (size_t)op->out_width;
            for (w = 0; w < (size_t)op->out_width; ++w) out[w] = in[w];
        }
    }
    sb_activate(op, y, sb_size_out(op));
}

/* The part of a pool's window that lies inside the input. */
static inline void sb_window(int32_t at, int32_t kernel, int32_t dilation, int32_t size, int32_t *first,
                             int32_t *last)
{
    *first = at < 0 ? at + (-at + dilation - 1) / dilation * dilation : at;
    *last = at + (kernel - 1) * dilation + 1 < size ? at + (kernel - 1) * dilation + 1 : size;
}

static inline float sb_most(float a, float b)
{
    return a > b || a != a ? a : b; /* NaN stays */
}

/* The usual pool: 2 x 2, without border. */
static int sb_pool_halves(const sb_op *op, const float *x, float *y)
{
    const size_t width = (size_t)op->width, out_width = (size_t)op->out_width;
    size_t c, h, w;
    if (op->kernel_height != 2 || op->kernel_width != 2 || op->stride_height != 2 || op->stride_width != 2
        || op->pad_top || op->pad_left || op->dilation_height != 1 || op->dilation_width != 1
        || 2 * op->out_height > op->height || 2 * op->out_width > op->width)
        return 0;
    for (c = 0; c < (size_t)op->channels; ++c)
        for (h = 0; h < (size_t)op->out_height; ++h) {
            const float *a = x + (c * (size_t)op->height + 2 * h) * width, *b = a + width;
            float *out = y + (c * (size_t)op->out_height + h) * out_width;
            if (op->kind == SB_AVERAGE)
                for (w = 0; w < out_width; ++w)
                    out[w] = 0.25f * (a[2 * w] + a[2 * w + 1] + b[2 * w] + b[2 * w + 1]);
            else
                for (w = 0; w < out_width; ++w)
                    out[w] = sb_most(sb_most(a[2 * w], a[2 * w + 1]), sb_most(b[2 * w], b[2 * w + 1]));
        }
    return 1;
}

#define SB_POOL(NAME, TYPE, ROUND)                                                                       \
    static void NAME(const sb_op *op, const TYPE *x, TYPE *y)                                            \
    {                                                                                                    \
        int32_t c, h, w, i, j, top, bottom, left, right;                                                 \
        for (c = 0; c < op->channels; ++c, x += (size_t)op->height * (size_t)op->width)                  \
            for (h = 0; h < op->out_height; ++h)                                                         \
                for (w = 0; w < op->out_width; ++w) {                                                    \
                    int32_t count = 0;                                                                   \
                    float sum = 0.0f, most = 0.0f;                                                       \
                    sb_window(h * op->stride_height - op->pad_top, op->kernel_height,                    \
                              op->dilation_height, op->height, &top, &bottom);                           \
                    sb_window(w * op->stride_width - op->pad_left, op->kernel_width,                     \
                              op->dilation_width, op->width, &left, &right);                             \
                    for (i = top; i < bottom; i += op->dilation_height)                                  \
                        for (j = left; j < right; j += op->dilation_width, ++count) {                    \
                            const float value = (float)x[(size_t)i * (size_t)op->width + (size_t)j];     \
                            sum += value;                                                                \
                            most = count ? sb_most(value, most) : value;                                 \
                        }                                                                                \
                    *y++ = (TYPE)(op->kind == SB_AVERAGE ? sum / (float)count + ROUND : most);           \
                }                                                                                        \
    }
SB_POOL(sb_pool_any, float, 0.0f)

static void sb_pool(const sb_op *op, const float *x, float *y)
{
    if (!sb_pool_halves(op, x, y)) sb_pool_any(op, x, y);
}

/* ---- the network --------------------------------------------------------------------------------- */

/* Floats of scratch that a thread needs. */
SB_API size_t sb_floats(const sb_network *network)
{
    return 2 * (size_t)network->largest * (size_t)network->block + (size_t)network->arranged
           + (size_t)network->plane;
}

/* At most SB_BLOCK rows. With more than one row, linear layers and what follows them have rows innermost. */
static void sb_rows(const sb_network *network, const float *x, size_t rows, float *y, float *scratch)
{
    const size_t half = (size_t)network->largest * (size_t)network->block;
    float *arranged = scratch + 2 * half, *plane = arranged + network->arranged;
    float *buffers[2];
    const float *in = x;
    size_t i, j, r, size = (size_t)network->inputs;
    int next = 0, block = 0;
    buffers[0] = scratch;
    buffers[1] = scratch + half;
    for (i = 0; i < (size_t)network->n_ops; ++i) {
        const sb_op *op = network->ops + i;
        const size_t from = sb_size_in(op), to = sb_size_out(op);
        float *out = buffers[next];
        if (op->kind == SB_LINEAR && rows > 1 && !block) {
            sb_transpose(in, from, rows, out);
            in = out;
            out = buffers[next = 1 - next];
            block = 1;
        }
        switch (op->kind) {
        case SB_LINEAR:
            sb_linear(op, in, block, out);
            break;
        case SB_CONV:
            for (r = 0; r < rows; ++r) sb_conv(op, in + r * from, arranged, plane, out + r * to);
            break;
        case SB_TAKE:
            sb_take(op, in, rows, out);
            break;
        case SB_ACTIVATION:
            size = from * (block ? SB_BLOCK : rows);
            for (j = 0; j < size; ++j) out[j] = in[j];
            sb_activate(op, out, size);
            break;
        default:
            for (r = 0; r < rows; ++r) sb_pool(op, in + r * from, out + r * to);
            break;
        }
        in = out;
        next = 1 - next;
        size = to;
    }
    if (network->n_ops == 0) size = (size_t)network->inputs;
    for (r = 0; r < rows; ++r)
        for (j = 0; j < size; ++j) y[r * size + j] = block ? in[j * SB_BLOCK + r] : in[r * size + j];
}

/* ---- quantized ----------------------------------------------------------------------------------- */
#ifndef SB_FLOAT_ONLY

SB_TRANSPOSE(sb_transpose8, uint8_t)
SB_TAKE_FROM(sb_take8, uint8_t)
SB_CARRY(sb_carry8, uint8_t)
SB_ARRANGE(sb_arrange8, uint8_t)
SB_PLANE(sb_plane8, uint8_t, int32_t, level, bias_level)
SB_POOL(sb_pool8, uint8_t, 0.5f)

static inline uint8_t sb_level(float value, float inverse, int32_t zero)
{
    const float at = value * inverse + (float)zero;
    const float low = at > 0.0f ? at : 0.0f;
    return (uint8_t)((low < 255.0f ? low : 255.0f) + 0.5f);
}

/* Sums in units of the output: activate, then store as levels, or as they are for the last op. */
static void sb_store8(const sb_op *op, float *value, size_t n, uint8_t *y, float *last)
{
    size_t i;
    sb_activate(op, value, n);
    if (last)
        for (i = 0; i < n; ++i) last[i] = value[i];
    else
        for (i = 0; i < n; ++i) y[i] = sb_level(value[i], op->inverse, op->zero_out);
}

static void sb_linear8_row(const sb_op *op, const uint8_t *x, uint8_t *y, float *last)
{
    size_t first, o, k;
    for (first = 0; first < sb_units(op); first += SB_BLOCK) {
        const size_t left = sb_units(op) - first, n = left < SB_BLOCK ? left : SB_BLOCK;
        float value[SB_BLOCK];
        for (o = 0; o < n; ++o) {
            const size_t begin = op->start[first + o], end = op->start[first + o + 1];
            int32_t sum = op->bias_level[first + o];
            if (op->index16)
                for (k = begin; k < end; ++k) sum += op->level[k] * (int32_t)x[op->index16[k]];
            else
                for (k = begin; k < end; ++k) sum += op->level[k] * (int32_t)x[op->index32[k]];
            value[o] = (float)sum * op->scale[first + o];
        }
        sb_store8(op, value, n, y + first, last ? last + first : last);
    }
    sb_carry8(op, x, 1, y);
}

static void sb_linear8_block(const sb_op *op, const uint8_t *x, uint8_t *y, float *last)
{
    size_t o, k;
    int r;
    for (o = 0; o < sb_units(op); ++o) {
        int32_t sum[SB_BLOCK];
        float value[SB_BLOCK];
        for (r = 0; r < SB_BLOCK; ++r) sum[r] = op->bias_level[o];
        for (k = op->start[o]; k < op->start[o + 1]; ++k) {
            const int32_t w = op->level[k];
            const uint8_t *in = x + sb_index(op, k) * SB_BLOCK;
            for (r = 0; r < SB_BLOCK; ++r) sum[r] += w * (int32_t)in[r];
        }
        for (r = 0; r < SB_BLOCK; ++r) value[r] = (float)sum[r] * op->scale[o];
        sb_store8(op, value, SB_BLOCK, y + o * SB_BLOCK, last ? last + o * SB_BLOCK : last);
    }
    sb_carry8(op, x, SB_BLOCK, y);
}

static void sb_conv8(const sb_op *op, const uint8_t *x, uint8_t *arranged, float *plane, uint8_t *y, float *last)
{
    const size_t width = (size_t)op->out_width, size = (size_t)op->out_height * width;
    size_t o, h, w;
    if (sb_is_arranged(op)) {
        sb_arrange8(op, x, (uint8_t)op->zero_in, arranged);
        x = arranged;
    }
    for (o = 0; o < (size_t)op->outputs; ++o) {
        sb_plane8(op, o, x, plane);
        for (h = 0; h < (size_t)op->out_height; ++h)
            for (w = 0; w < width; ++w)
                plane[h * width + w] = plane[h * (size_t)op->plane_width + w] * op->scale[o];
        sb_store8(op, plane, size, y + o * size, last ? last + o * size : last);
    }
}

static void sb_activate8(const sb_op *op, const uint8_t *x, size_t n, uint8_t *y)
{
    uint8_t level[256];
    size_t i;
    for (i = 0; i < 256; ++i) {
        float value = (float)((int32_t)i - op->zero_in) * op->scale[0];
        sb_activate(op, &value, 1);
        level[i] = sb_level(value, op->inverse, op->zero_out);
    }
    for (i = 0; i < n; ++i) y[i] = level[x[i]];
}

/* As sb_rows, on levels; the last op has weights, and its outputs are floats. */
static void sb_rows8(const sb_network *network, const float *x, size_t rows, float *y, float *scratch)
{
    const size_t half = (size_t)network->largest * (size_t)network->block, inputs = (size_t)network->inputs;
    float *last = scratch + half, *plane = scratch + 2 * half + network->arranged;
    uint8_t *arranged = (uint8_t *)(scratch + 2 * half), *buffers[2], *in;
    size_t i, j, r;
    int next = 1, block = 0;
    buffers[0] = in = (uint8_t *)scratch;
    buffers[1] = (uint8_t *)scratch + half;
    for (j = 0; j < rows * inputs; ++j) in[j] = sb_level(x[j], network->inverse_in, network->zero_in);
    for (i = 0; i < (size_t)network->n_ops; ++i) {
        const sb_op *op = network->ops + i;
        const size_t from = sb_size_in(op), to = sb_size_out(op);
        float *end = i + 1 == (size_t)network->n_ops ? last : NULL;
        uint8_t *out = buffers[next];
        if (op->kind == SB_LINEAR && rows > 1 && !block) {
            sb_transpose8(in, from, rows, out);
            in = out;
            out = buffers[next = 1 - next];
            block = 1;
        }
        switch (op->kind) {
        case SB_LINEAR:
            if (block) sb_linear8_block(op, in, out, end);
            else sb_linear8_row(op, in, out, end);
            break;
        case SB_CONV:
            for (r = 0; r < rows; ++r)
                sb_conv8(op, in + r * from, arranged, plane, out + r * to, end ? end + r * to : end);
            break;
        case SB_TAKE:
            sb_take8(op, in, rows, out);
            break;
        case SB_ACTIVATION:
            sb_activate8(op, in, from * (block ? SB_BLOCK : rows), out);
            break;
        default:
            for (r = 0; r < rows; ++r) sb_pool8(op, in + r * from, out + r * to);
            break;
        }
        in = out;
        next = 1 - next;
    }
    for (r = 0; r < rows; ++r)
        for (j = 0; j < (size_t)network->outputs; ++j)
            y[r * (size_t)network->outputs + j] =
                block ? last[j * SB_BLOCK + r] : last[r * (size_t)network->outputs + j];
}
#endif

/* ---- entry --------------------------------------------------------------------------------------- */

/* y (rows x outputs) of x (rows x inputs); scratch holds sb_floats(network) floats for each of the threads. */
SB_API void sb_run(const sb_network *network, const float *x, size_t rows, float *y, float *scratch, int threads)
{
    const size_t block = (size_t)network->block, blocks = (rows + block - 1) / block;
    size_t b;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1 && blocks > 1)
#endif
    for (b = 0; b < blocks; ++b) {
        const size_t first = b * block, left = rows - first, n = left < block ? left : block;
        const size_t step = n > 2 ? n : 1; /* two rows are faster one by one */
        size_t r, thread = 0;
        float *own;
#ifdef _OPENMP
        thread = (size_t)omp_get_thread_num();
#endif
        own = scratch + thread * sb_floats(network);
        for (r = first; r < first + n; r += step) {
            const float *in = x + r * (size_t)network->inputs;
            float *out = y + r * (size_t)network->outputs;
#ifndef SB_FLOAT_ONLY
            if (network->quantized) {
                sb_rows8(network, in, step, out, own);
                continue;
            }
#endif
            sb_rows(network, in, step, out, own);
        }
    }
}
