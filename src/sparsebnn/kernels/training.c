/* The elementwise parts of a training step on a CPU, each in one pass over its tensors. C99, no allocation.
 *
 * Tensors are float32, contiguous and stacked: (replicates, n). Loops run in lanes of SB_LANES numbers, so
 * that a compiler vectorizes them without reordering sums, and in chunks of SB_CHUNK numbers, whose sums are
 * added in order: results do not depend on the number of threads. The eager twins are in PyTorch:
 * sparsebnn/random/noise.py (sb_normals), training/dense.py (sb_moments, sb_gradients), training/engine.py
 * (sb_adam).
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define SB_LANES 16
#define SB_CHUNK 2048

/* ---- elementary functions, within 2 units in the last place ---------------------------------------- */

static inline float sb_from_bits(int32_t bits)
{
    union { int32_t bits; float value; } u;
    u.bits = bits;
    return u.value;
}

static inline int32_t sb_to_bits(float value)
{
    union { int32_t bits; float value; } u;
    u.value = value;
    return u.bits;
}

/* exp(x) for x from -87 to 88; beyond these the value there. */
static inline float sb_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float y = x < -87.0f ? -87.0f : x, whole, r, p;
    y = y > 88.0f ? 88.0f : y;
    whole = (y * 1.44269504f + magic) - magic;
    r = (y - whole * 0.693359375f) + whole * 2.12194440e-4f;
    p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.3334519e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    return p * sb_from_bits(((int32_t)whole + 127) * 8388608);
}

/* log of a normal number above 0 */
static inline float sb_log(float x)
{
    const int32_t bits = sb_to_bits(x), shifted = bits - 0x3f3504f3; /* of the square root of 1/2 */
    const int32_t power = shifted >> 23;
    const float m = sb_from_bits(bits - power * 8388608), e = (float)power;
    const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    const float p = 0.66666666f + z * (0.4f + z * (0.28571429f + z * (0.22222222f + z * 0.18181818f)));
    return e * 0.693359375f + (s * (2.0f + z * p) + e * -2.12194440e-4f);
}

/* log(1 + u) for u from 0 to 1, to a small relative error */
static inline float sb_log1p(float u)
{
    const float s = u / (2.0f + u), z = s * s;
    float p = 0.11764706f;
    p = p * z + 0.13333333f;
    p = p * z + 0.15384615f;
    p = p * z + 0.18181818f;
    p = p * z + 0.22222222f;
    p = p * z + 0.28571429f;
    p = p * z + 0.4f;
    p = p * z + 0.66666667f;
    return s * (2.0f + z * p);
}

/* sigmoid(x), sigmoid(-x) and softplus(x), all from u = exp(-|x|) */
static inline float sb_fall(float x) { return sb_exp(-fabsf(x)); }
static inline float sb_sigmoid(float x, float u) { return (x > 0.0f ? 1.0f : u) / (1.0f + u); }
static inline float sb_softplus(float x, float u) { return sb_log1p(u) + (x > 0.0f ? x : 0.0f); }

/* ---- noise ------------------------------------------------------------------------------------------ */

static inline uint64_t sb_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* The two keys of a seed, stream and step. */
static inline uint64_t sb_key(int64_t seed, int64_t stream, int64_t step)
{
    return sb_mix(sb_mix((uint64_t)seed * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)stream) + (uint64_t)step);
}

static inline uint64_t sb_second(uint64_t first) { return sb_mix(first ^ UINT64_C(0xBF58476D1CE4E5B9)); }

/* The pair of standard normal numbers of a hash: radius times cosine and sine of the angle. */
static inline void sb_pair(uint64_t bits, float *first, float *second)
{
    /* Signed conversions of 32 bits are vector instructions everywhere; unsigned ones are not. */
    const float high = (float)(int64_t)(bits >> 32), low = (float)(int64_t)(bits & 0xFFFFFFFFu);
    const float radius = sqrtf(-2.0f * sb_log((high + 0.5f) * 2.3283064e-10f));
    const float angle = low * 1.4629181e-9f, magic = 12582912.0f;
    const float turns = angle * 0.63661977f + magic, quarter = turns - magic;
    const int32_t q = (int32_t)quarter;
    const float r = (angle - quarter * 1.5707964f) - quarter * -4.371139e-8f, z = r * r;
    const float sine = r + r * z * (-1.6666655e-1f + z * (8.3321609e-3f + z * -1.9515296e-4f));
    const float cosine = 1.0f - 0.5f * z + z * z * (4.1666646e-2f + z * (-1.3887316e-3f + z * 2.4433157e-5f));
    const float a = q & 1 ? sine : cosine, b = q & 1 ? cosine : sine;
    *first = radius * ((q + 1) & 2 ? -a : a);
    *second = radius * (q & 2 ? -b : b);
}

/* log of a normal number above 0, within 1e-15 */
static inline double sb_log_double(double x)
{
    union { double value; int64_t bits; } u;
    int64_t shifted;
    double m, e, s, z, p;
    u.value = x;
    shifted = u.bits - INT64_C(0x3fe6a09e667f3bcd); /* of the square root of 1/2 */
    e = (double)((int32_t)(shifted >> 32) >> 20);
    u.bits -= shifted & INT64_C(-0x10000000000000);
    m = u.value;
    s = (m - 1.0) / (m + 1.0);
    z = s * s;
    p = 0.11764705882352941 + z * (0.10526315789473684 + z * 0.09523809523809523);
    p = 0.18181818181818182 + z * (0.15384615384615385 + z * (0.13333333333333333 + z * p));
    p = 0.66666666666666667 + z * (0.4 + z * (0.28571428571428571 + z * (0.22222222222222222 + z * p)));
    return e * 0.69314718055994531 + s * (2.0 + z * p);
}

/* The pair in double precision, within 1e-14. The quarter of the turn and the rest are whole numbers. */
static inline void sb_pair_double(uint64_t bits, double *first, double *second)
{
    const double high = (double)(int32_t)((uint32_t)(bits >> 32) ^ 0x80000000u) + 2147483648.5;
    const uint32_t low = (uint32_t)bits, q = (low + 0x20000000u) >> 30;
    const double r = (double)(int32_t)(low - (q << 30)) * 1.4629180792671596e-9, z = r * r;
    const double radius = sqrt(-2.0 * sb_log_double(high * 2.3283064365386963e-10));
    double s, c, a, b;
    s = -7.6471637318198165e-13 * z + 1.6059043836821613e-10;
    s = ((s * z - 2.5052108385441718e-8) * z + 2.7557319223985893e-6) * z - 1.9841269841269841e-4;
    s = r + r * z * ((s * z + 8.3333333333333333e-3) * z - 1.6666666666666667e-1);
    c = 4.7794773323873853e-14 * z - 1.1470745597729725e-11;
    c = ((c * z + 2.0876756987868099e-9) * z - 2.7557319223985891e-7) * z + 2.4801587301587302e-5;
    c = 1.0 - 0.5 * z + z * z * ((c * z - 1.3888888888888889e-3) * z + 4.1666666666666667e-2);
    a = q & 1 ? s : c;
    b = q & 1 ? c : s;
    *first = radius * ((q + 1) & 2 ? -a : a);
    *second = radius * (q & 2 ? -b : b);
}

/* The two standard logistic numbers of a hash: log(u / (1 - u)) with u in steps of 2^-23. */
static inline float sb_logit_of(uint32_t place)
{
    const float u = (float)(int32_t)place + 0.5f;
    return sb_log(u / (8388608.0f - u));
}

static inline double sb_logit_of_double(uint32_t place)
{
    const double u = (double)(int32_t)place + 0.5;
    return sb_log_double(u / (8388608.0 - u));
}

static inline void sb_logistics_of(uint64_t bits, float *first, float *second)
{
    *first = sb_logit_of((uint32_t)(bits >> 41) & 0x7FFFFFu);
    *second = sb_logit_of((uint32_t)(bits >> 9) & 0x7FFFFFu);
}

static inline void sb_logistics_of_double(uint64_t bits, double *first, double *second)
{
    *first = sb_logit_of_double((uint32_t)(bits >> 41) & 0x7FFFFFu);
    *second = sb_logit_of_double((uint32_t)(bits >> 9) & 0x7FFFFFu);
}

/* (rows, count) numbers, whose pairs come from a hash: the first half of a row are first numbers (cosines), the
 * second half second ones (sines). Seeds and steps are one for each row or, with a stride of 0, one for all. */
#define SB_NUMBERS(name, type, pair)                                                                        \
    void name(const int64_t *seeds, int64_t seed_stride, int64_t stream, const int64_t *steps,              \
              int64_t step_stride, int64_t rows, int64_t count, type *out, int threads)                     \
    {                                                                                                       \
        const int64_t half = (count + 1) / 2, chunks = (half + SB_CHUNK - 1) / SB_CHUNK;                    \
        int64_t task;                                                                                       \
        (void)threads;                                                                                      \
        SB_PARALLEL                                                                                         \
        for (task = 0; task < rows * chunks; task++) {                                                      \
            const int64_t k = task / chunks, begin = task % chunks * SB_CHUNK;                              \
            const int64_t length = half - begin < SB_CHUNK ? half - begin : SB_CHUNK;                       \
            const uint64_t first = sb_key(seeds[k * seed_stride], stream, steps[k * step_stride]);          \
            const uint64_t second = sb_second(first);                                                       \
            type *firsts = out + k * count + begin, *seconds = firsts + half;                               \
            const int64_t paired = begin + length + half > count ? length - 1 : length;                     \
            int64_t i;                                                                                      \
            for (i = 0; i < length; i++) {                                                                  \
                type last;                                                                                  \
                pair(sb_mix(sb_mix((uint64_t)(begin + i) ^ first) ^ second), firsts + i, &last);            \
                if (i < paired)                                                                             \
                    seconds[i] = last;                                                                      \
            }                                                                                               \
        }                                                                                                   \
    }
#ifdef _OPENMP
#define SB_PARALLEL _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
#else
#define SB_PARALLEL
#endif

SB_NUMBERS(sb_normals, float, sb_pair)
SB_NUMBERS(sb_normals_double, double, sb_pair_double)
SB_NUMBERS(sb_logistics, float, sb_logistics_of)
SB_NUMBERS(sb_logistics_double, double, sb_logistics_of_double)

/* (replicates, count) of these numbers. Each of the pairs has a hash and the places in a row of its cosine and of
 * its sine; a place is -1 where that number is not wanted. */
void sb_normals_at(const int64_t *seeds, int64_t stream, int64_t step, int64_t replicates, int64_t count,
                   const int64_t *hashes, const int64_t *cosines, const int64_t *sines, int64_t pairs, float *out,
                   int threads)
{
    const int64_t chunks = (pairs + SB_CHUNK - 1) / SB_CHUNK;
    int64_t task;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (task = 0; task < replicates * chunks; task++) {
        const int64_t k = task / chunks, begin = task % chunks * SB_CHUNK;
        const int64_t length = pairs - begin < SB_CHUNK ? pairs - begin : SB_CHUNK;
        const uint64_t first = sb_key(seeds[k], stream, step), second = sb_second(first);
        float *own = out + k * count, made[2][SB_CHUNK];
        int64_t i;
        for (i = 0; i < length; i++)
            sb_pair(sb_mix(sb_mix((uint64_t)hashes[begin + i] ^ first) ^ second), made[0] + i, made[1] + i);
        for (i = 0; i < length; i++) {
            if (cosines[begin + i] >= 0)
                own[cosines[begin + i]] = made[0][i];
            if (sines[begin + i] >= 0)
                own[sines[begin + i]] = made[1][i];
        }
    }
}

/* ---- weights ---------------------------------------------------------------------------------------- */

/* A sum in an order that does not depend on the machine. */
static double sb_sum(const float *values, int64_t length)
{
    float lanes[SB_LANES] = {0.0f};
    double total = 0.0;
    int64_t i, l;
    for (i = 0; i + SB_LANES <= length; i += SB_LANES)
        for (l = 0; l < SB_LANES; l++)
            lanes[l] += values[i + l];
    for (; i < length; i++)
        lanes[0] += values[i];
    for (l = 0; l < SB_LANES; l++)
        total += (double)lanes[l];
    return total;
}

/* Moments of included weights, or of those included with probability sigmoid(g). */
static void sb_dense_moments(int64_t n, const float *restrict r, float *restrict v)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float std = sb_softplus(r[i], sb_fall(r[i]));
        v[i] = std * std;
    }
}

static void sb_sparse_moments(int64_t n, const float *restrict m, const float *restrict r,
                              const float *restrict g, float centre, float *restrict e, float *restrict v,
                              float *restrict kept, float *restrict spread)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float std = sb_softplus(r[i], sb_fall(r[i])), square = std * std, error = m[i] - centre;
        const float u = sb_fall(g[i]), in = sb_sigmoid(g[i], u), out = sb_sigmoid(-g[i], u);
        const float scaled = in * m[i];
        e[i] = scaled;
        v[i] = in * square + out * (scaled * m[i]);
        kept[i] = in;
        spread[i] = in * (square + error * error);
    }
}

/* Mean and variance of weights; without logits all are included, and the mean is the weights' own.
 * prior_mean has one value, or with a stride of 1 one for each replicate. sums are (replicates, chunks, 2):
 * inclusions, and inclusion * (std^2 + (mean - prior_mean)^2). */
void sb_moments(int64_t replicates, int64_t n, const float *mean, const float *raw_std, const float *logit,
                const float *prior_mean, int64_t stride, float *first, float *var, double *sums, int threads)
{
    const int64_t chunks = (n + SB_CHUNK - 1) / SB_CHUNK;
    int64_t task;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (task = 0; task < replicates * chunks; task++) {
        const int64_t k = task / chunks, begin = task % chunks * SB_CHUNK, at = k * n + begin;
        const int64_t length = n - begin < SB_CHUNK ? n - begin : SB_CHUNK;
        if (logit) {
            float kept[SB_CHUNK], spread[SB_CHUNK];
            sb_sparse_moments(length, mean + at, raw_std + at, logit + at, prior_mean[k * stride],
                              first + at, var + at, kept, spread);
            sums[2 * task] = sb_sum(kept, length);
            sums[2 * task + 1] = sb_sum(spread, length);
        } else
            sb_dense_moments(length, raw_std + at, var + at);
    }
}

typedef struct { float mean, log_std, precision, logit, share; } sb_prior;

static void sb_dense_gradients(int64_t n, sb_prior prior, const float *restrict m, const float *restrict r,
                               float *restrict dm, float *restrict dv, float *restrict kl)
{
    const float least = 1.1754944e-38f, precision = prior.precision, share = prior.share;
    const float centre = prior.mean, base = prior.log_std - 0.5f;
    int64_t i;
    for (i = 0; i < n; i++) {
        const float w = sb_fall(r[i]), soft = sb_softplus(r[i], w), std = soft > least ? soft : least;
        const float error = m[i] - centre, of_var = dv[i];
        kl[i] = (base - sb_log(std)) + 0.5f * precision * (std * std + error * error);
        dm[i] += share * error * precision;
        dv[i] = sb_sigmoid(r[i], w) * (2.0f * std * of_var + share * (std * precision - 1.0f / std));
    }
}

static void sb_sparse_gradients(int64_t n, sb_prior prior, const float *restrict m, const float *restrict r,
                                const float *restrict g, float *restrict dm, float *restrict dv,
                                float *restrict dg, float *restrict kl)
{
    const float least = 1.1754944e-38f, precision = prior.precision, share = prior.share;
    const float centre = prior.mean, base = prior.log_std - 0.5f, rate = prior.logit;
    const float ground = sb_softplus(rate, sb_fall(rate));
    int64_t i;
    for (i = 0; i < n; i++) {
        const float w = sb_fall(r[i]), soft = sb_softplus(r[i], w), std = soft > least ? soft : least;
        const float u = sb_fall(g[i]), in = sb_sigmoid(g[i], u), out = sb_sigmoid(-g[i], u);
        const float error = m[i] - centre, square = std * std, of_mean = dm[i], of_var = dv[i];
        const float slab = (base - sb_log(std)) + 0.5f * precision * (square + error * error);
        const float cost = slab + (g[i] - rate);
        const float by_in = of_mean * m[i] + of_var * (square + (out - in) * (m[i] * m[i]));
        kl[i] = in * cost + (ground - sb_softplus(g[i], u));
        dm[i] = in * (of_mean + 2.0f * out * m[i] * of_var + share * error * precision);
        dv[i] = in * sb_sigmoid(r[i], w) * (2.0f * std * of_var + share * (std * precision - 1.0f / std));
        dg[i] = (by_in + share * cost) * in * out;
    }
}

/* Gradients of the loss by mean, raw_std and logit. by_mean and by_var hold the gradients by the moments and
 * receive those by mean and raw_std. share is what the KL counts, kl the KL of each replicate; its parts are
 * (replicates, chunks). prior is (replicates, 3): mean, log of the std, logit of the inclusion. */
void sb_gradients(int64_t replicates, int64_t n, const float *mean, const float *raw_std, const float *logit,
                  const float *prior, const float *share, float *by_mean, float *by_var, float *by_logit,
                  double *parts, float *kl, int threads)
{
    const int64_t chunks = (n + SB_CHUNK - 1) / SB_CHUNK;
    int64_t task, each;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (task = 0; task < replicates * chunks; task++) {
        const int64_t k = task / chunks, begin = task % chunks * SB_CHUNK, at = k * n + begin;
        const int64_t length = n - begin < SB_CHUNK ? n - begin : SB_CHUNK;
        float part[SB_CHUNK];
        sb_prior own;
        own.mean = prior[3 * k];
        own.log_std = prior[3 * k + 1];
        own.precision = sb_exp(-2.0f * own.log_std);
        own.logit = prior[3 * k + 2];
        own.share = share[k];
        if (logit)
            sb_sparse_gradients(length, own, mean + at, raw_std + at, logit + at, by_mean + at, by_var + at,
                                by_logit + at, part);
        else
            sb_dense_gradients(length, own, mean + at, raw_std + at, by_mean + at, by_var + at, part);
        parts[task] = sb_sum(part, length);
    }
    for (each = 0; each < replicates; each++) {
        double sum = 0.0;
        for (task = each * chunks; task < (each + 1) * chunks; task++)
            sum += parts[task];
        kl[each] = (float)sum;
    }
}

/* What a prior is (replicates, 3): mean, log of the std, logit of the inclusion. Each comes as one value, or
 * with a stride of 1 as one per replicate. A strength of 0 or more says that the std, or the inclusion, is
 * learned from the sums of sb_moments over n weights, and what the given value counts. */
void sb_priors(int64_t replicates, int64_t n, const double *sums, const float *mean, int64_t mean_stride,
               const float *std, int64_t std_stride, const float *inclusion, int64_t inclusion_stride,
               double strength, double inclusion_strength, double most, float *prior)
{
    const int64_t chunks = (n + SB_CHUNK - 1) / SB_CHUNK;
    int64_t k, c;
    for (k = 0; k < replicates; k++) {
        double kept = 0.0, spread = 0.0, own = (double)std[k * std_stride], rate = 0.5;
        for (c = 0; c < chunks; c++) {
            kept += sums[2 * (k * chunks + c)];
            spread += sums[2 * (k * chunks + c) + 1];
        }
        if (strength >= 0.0)
            own = sqrt((strength * own * own + spread) / (strength + kept));
        if (inclusion)
            rate = (double)inclusion[k * inclusion_stride];
        if (inclusion_strength >= 0.0) {
            rate = (inclusion_strength * rate + kept / (double)n) / (1.0 + inclusion_strength);
            rate = rate < most ? rate : most;
        }
        prior[3 * k] = mean[k * mean_stride];
        prior[3 * k + 1] = (float)log(own);
        prior[3 * k + 2] = (float)(log(rate) - log(1.0 - rate));
    }
}

/* ---- units ------------------------------------------------------------------------------------------ */

static void sb_outputs_of(int64_t n, float *restrict mean, float *restrict var, const float *restrict noise,
                          float least)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float std = sqrtf(var[i] > least ? var[i] : least);
        mean[i] += std * noise[i];
        var[i] = std;
    }
}

static void sb_rectified(int64_t n, const float *restrict y, float *restrict z, float *restrict square)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float up = y[i] > 0.0f ? y[i] : 0.0f;
        z[i] = up;
        square[i] = up * up;
    }
}

static void sb_passed(int64_t n, const float *restrict x, float *restrict z, float *restrict square)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        z[i] = x[i];
        square[i] = x[i] * x[i];
    }
}

static void sb_slopes_of(int64_t n, float *restrict a, const float *restrict b, const float *restrict y)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float slope = a[i] + 2.0f * y[i] * b[i];
        a[i] = y[i] > 0.0f ? slope : 0.0f;
    }
}

static void sb_noisy_of(int64_t n, const float *restrict slope, const float *restrict std,
                        const float *restrict noise, float least, float *restrict noisy)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float found = slope[i] * noise[i] / (2.0f * std[i]);
        noisy[i] = std[i] > least ? found : 0.0f;
    }
}

/* Outputs of the units of a layer, (replicates, n): mean + sqrt(var) * noise, in the place of the mean. var
 * receives the standard deviation. The noise of a replicate is stride numbers after that of the one before. */
void sb_outputs(int64_t replicates, int64_t n, float *mean, float *var, const float *noise, int64_t stride,
                float least, int threads)
{
    int64_t k;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (k = 0; k < replicates; k++)
        sb_outputs_of(n, mean + k * n, var + k * n, noise + k * stride, least);
}

/* The inputs of the next layer and their squares, (rows, units + skipped): rectified outputs, then x. */
void sb_inputs(int64_t rows, int64_t units, int64_t skipped, const float *outputs, const float *x, float *z,
               float *square)
{
    const int64_t width = units + skipped;
    int64_t i;
    for (i = 0; i < rows; i++) {
        sb_rectified(units, outputs + i * units, z + i * width, square + i * width);
        if (skipped)
            sb_passed(skipped, x + i * skipped, z + i * width + units, square + i * width + units);
    }
}

/* The gradient by the outputs of a layer of rectified units: by_mean + 2 * output * by_var where the output
 * is above 0, in the place of by_mean. Without by_var: of the last layer, by_mean itself. noisy receives
 * gradient * noise / (2 * std). */
void sb_slopes(int64_t replicates, int64_t n, float *by_mean, const float *by_var, const float *outputs,
               const float *std, const float *noise, int64_t stride, float least, float *noisy, int threads)
{
    int64_t k;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (k = 0; k < replicates; k++) {
        if (by_var)
            sb_slopes_of(n, by_mean + k * n, by_var + k * n, outputs + k * n);
        sb_noisy_of(n, by_mean + k * n, std + k * n, noise + k * stride, least, noisy + k * n);
    }
}

/* ---- Adam ------------------------------------------------------------------------------------------- */

typedef struct { float rate, inverse, beta1, beta2, epsilon; } sb_rates;

static void sb_adam_of(int64_t n, sb_rates by, float *restrict p, const float *restrict g, float *restrict m,
                       float *restrict v)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float d = g[i], moved = m[i] + (1.0f - by.beta1) * (d - m[i]);
        const float square = by.beta2 * v[i] + (1.0f - by.beta2) * (d * d);
        const float next = p[i] - by.rate * moved / (sqrtf(square) * by.inverse + by.epsilon);
        m[i] = moved;
        v[i] = square;
        p[i] = d - d == 0.0f ? next : p[i];
    }
}

/* One step for a list of tensors: size[t] numbers in each of the replicates, of which some are alive.
 * rate is (tensors, replicates) with the first correction in it, root the square root of the second. A
 * gradient that is not finite does not reach its parameter. */
void sb_adam(int64_t tensors, const int64_t *size, float *const *parameter, const float *const *gradient,
             float *const *first, float *const *second, const float *rate, const uint8_t *alive,
             int64_t replicates, float root, float beta1, float beta2, float epsilon, int threads)
{
    int64_t t;
    for (t = 0; t < tensors; t++) {
        const int64_t chunks = (size[t] + SB_CHUNK - 1) / SB_CHUNK, tasks = replicates * chunks;
        int64_t task;
        (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && tasks > 8)
        for (task = 0; task < tasks; task++) {
            const int64_t k = task / chunks, begin = task % chunks * SB_CHUNK, at = k * size[t] + begin;
            const int64_t length = size[t] - begin < SB_CHUNK ? size[t] - begin : SB_CHUNK;
            sb_rates by;
            by.rate = rate[t * replicates + k];
            by.inverse = 1.0f / root;
            by.beta1 = beta1;
            by.beta2 = beta2;
            by.epsilon = epsilon;
            if (alive[k])
                sb_adam_of(length, by, parameter[t] + at, gradient[t] + at, first[t] + at, second[t] + at);
        }
    }
}

/* Whether all numbers of each tensor and replicate are finite, (tensors, replicates). */
void sb_finite(int64_t tensors, const int64_t *size, const float *const *tensor, int64_t replicates,
               uint8_t *finite, int threads)
{
    int64_t task;
    (void)threads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (task = 0; task < tensors * replicates; task++) {
        const int64_t n = size[task / replicates];
        const float *values = tensor[task / replicates] + task % replicates * n;
        float lanes[SB_LANES] = {0.0f}, total = 0.0f;
        int64_t i, l;
        for (i = 0; i + SB_LANES <= n; i += SB_LANES)
            for (l = 0; l < SB_LANES; l++)
                lanes[l] += values[i + l] - values[i + l]; /* 0, or not a number */
        for (; i < n; i++)
            total += values[i] - values[i];
        for (l = 0; l < SB_LANES; l++)
            total += lanes[l];
        finite[task] = total == 0.0f;
    }
}
