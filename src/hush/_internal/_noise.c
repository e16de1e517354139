/* Standard normal numbers from random bits, and noise added to sums: the compiled form of noise_kernel.py.

The definition is in the docstring of noise_kernel.py. Every floating-point operation is IEEE 754 binary64, rounded to
nearest even on its own, so every compiler, processor and vector width gives the same bits. The loops are plain C that
compilers vectorise; they are compiled once per level (0: the baseline, SSE2 or NEON; 1: AVX2; 2: AVX-512).

Flags: -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math. None of them changes a value. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "compiled with -ffast-math, which changes results"
#endif
#include <float.h>
#if FLT_EVAL_METHOD != 0
#error "double arithmetic is not evaluated in double"
#endif
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "words are little-endian in memory"
#endif
#ifndef HUSH_SOURCE
#define HUSH_SOURCE ""
#endif

#define PAIRS 16384 /* of one block */
#define CHUNK 256   /* pairs at a time: their numbers stay in the first-level cache */
#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

/* Start with the default modes (nearest even, subnormal numbers kept), whatever the caller's thread has set. */
#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned int modes;
INLINE modes set_modes(void) { modes old = _mm_getcsr(); _mm_setcsr(0x1f80); return old; }
INLINE void reset_modes(modes old) { _mm_setcsr(old); }
#elif defined(__aarch64__)
typedef uint64_t modes;
INLINE modes set_modes(void) {
  modes old;
  __asm__ volatile("mrs %0, fpcr" : "=r"(old));
  __asm__ volatile("msr fpcr, %0" : : "r"((modes)0));
  return old;
}
INLINE void reset_modes(modes old) { __asm__ volatile("msr fpcr, %0" : : "r"(old)); }
#else
typedef int modes;
INLINE modes set_modes(void) { return 0; }
INLINE void reset_modes(modes old) { (void)old; }
#endif

INLINE double as_double(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
INLINE uint64_t as_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

static const double LN4 = 0x1.62e42fefa39efp+0;
static const double L[] = {-0x1p+2, -0x1.5555555555592p+0, -0x1.999999997ffafp-1, -0x1.24924941d4ea9p-1,
  -0x1.c71c522049fb6p-2, -0x1.74663a3d939dfp-2, -0x1.39a231c61ee2fp-2, -0x1.2f00c3fe80443p-2};
static const double S[] = {0x1.921fb54442d18p+0, -0x1.4abbce625be09p-1, 0x1.466bc67754ffbp-4, -0x1.32d2ccdfe8d0ap-8,
  0x1.50782d5e89456p-13, -0x1.e2fe766f665bap-19, 0x1.e357bb6294ae5p-25};
static const double C[] = {0x1p+0, -0x1.3bd3cc9be45dep+0, 0x1.03c1f081b5a66p-2, -0x1.55d3c7e3c301bp-6,
  0x1.e1f5067b5447ap-11, -0x1.a6d1e6f94b3efp-16, 0x1.f9c87823cd57ep-22, -0x1.b15c7caf9f5eep-28};

/* Two normal numbers from each pair of words. */
INLINE void transform(const uint64_t *restrict a, const uint64_t *restrict b, size_t pairs, double *restrict z1,
                      double *restrict z2) {
  for (size_t i = 0; i < pairs; i++) {
    uint64_t wa = a[i], wb = b[i];
    double high = as_double(0x45E0000000000000u | wa >> 32);
    double low = as_double(0x4330000000000000u | (wa & 0xFFFFFFFFu) << 11 | (wb & 0x3FFu) << 1 | 1);
    double x = (high - (0x1p95 + 0x1p52)) + low;
    uint64_t e = (as_bits(x) - 0x3FE6A09E667F3BCDu) >> 52;
    double m = as_double(as_bits(x) - (e << 52));
    double t = (0x1p52 + 75.0) - as_double(0x4330000000000000u | e);
    double s = (m - 1.0) / (m + 1.0), v = s * s;
    double p = L[6] + v * L[7];
    p = L[5] + v * p;
    p = L[4] + v * p;
    p = L[3] + v * p;
    p = L[2] + v * p;
    p = L[1] + v * p;
    p = L[0] + v * p;
    double r = __builtin_sqrt(t * LN4 + s * p);
    double f = as_double(0x3FF0000000000000u | (wb >> 10 & 0xFFFFFFFFFFFFFu)) - 1.5, w = f * f;
    double sine = S[5] + w * S[6];
    sine = S[4] + w * sine;
    sine = S[3] + w * sine;
    sine = S[2] + w * sine;
    sine = S[1] + w * sine;
    sine = f * (S[0] + w * sine);
    double cosine = C[6] + w * C[7];
    cosine = C[5] + w * cosine;
    cosine = C[4] + w * cosine;
    cosine = C[3] + w * cosine;
    cosine = C[2] + w * cosine;
    cosine = C[1] + w * cosine;
    cosine = C[0] + w * cosine;
    uint64_t odd = (uint64_t)0 - (wb >> 62 & 1), sin_bits = as_bits(sine), cos_bits = as_bits(cosine);
    double signed_r = as_double(as_bits(r) ^ (wb & 0x8000000000000000u));
    uint64_t first = (cos_bits & ~odd) | ((sin_bits ^ 0x8000000000000000u) & odd);
    uint64_t second = (sin_bits & ~odd) | (cos_bits & odd);
    z1[i] = signed_r * as_double(first);
    z2[i] = signed_r * as_double(second);
  }
}

/* Round half to even; without an instruction for it, by adding and subtracting 2^52. */
INLINE double round_even(double x, int has_rint) {
  if (has_rint) return __builtin_rint(x);
  uint64_t sign = as_bits(x) & 0x8000000000000000u;
  double size = as_double(as_bits(x) & 0x7FFFFFFFFFFFFFFFu);
  double rounded = as_double(as_bits((size + 0x1p52) - 0x1p52) | sign);
  return size < 0x1p52 ? rounded : x;
}

/* sum = [sum * fine + z * scale] * unit */
INLINE void add_float(float *restrict sum, const double *restrict z, size_t n, double fine, double scale, double unit,
                      int has_rint) {
  for (size_t i = 0; i < n; i++)
    sum[i] = (float)(round_even((double)sum[i] * fine + z[i] * scale, has_rint) * unit);
}

INLINE void add_double(double *restrict sum, const double *restrict z, size_t n, double fine, double scale, double unit,
                       int has_rint) {
  for (size_t i = 0; i < n; i++) sum[i] = round_even(sum[i] * fine + z[i] * scale, has_rint) * unit;
}

#define LEVEL(name, attribute, has_rint)                                                                          \
  attribute static void transform_##name(const uint64_t *a, const uint64_t *b, size_t n, double *z1, double *z2) { \
    transform(a, b, n, z1, z2);                                                                                   \
  }                                                                                                               \
  attribute static void add_float_##name(float *sum, const double *z, size_t n, double fine, double scale,        \
                                         double unit) {                                                           \
    add_float(sum, z, n, fine, scale, unit, has_rint);                                                            \
  }                                                                                                               \
  attribute static void add_double_##name(double *sum, const double *z, size_t n, double fine, double scale,      \
                                          double unit) {                                                          \
    add_double(sum, z, n, fine, scale, unit, has_rint);                                                           \
  }

struct level {
  void (*transform)(const uint64_t *, const uint64_t *, size_t, double *, double *);
  void (*add_float)(float *, const double *, size_t, double, double, double);
  void (*add_double)(double *, const double *, size_t, double, double, double);
};
#define ENTRY(name) {transform_##name, add_float_##name, add_double_##name}

#if defined(__x86_64__)
LEVEL(base, , 0)
LEVEL(avx2, __attribute__((target("avx2"))), 1)
LEVEL(avx512, __attribute__((target("avx512f,avx512dq,prefer-vector-width=512"))), 1)
static const struct level LEVELS[] = {ENTRY(base), ENTRY(avx2), ENTRY(avx512)};
#else
#if defined(__aarch64__)
LEVEL(base, , 1)
#else
LEVEL(base, , 0)
#endif
static const struct level LEVELS[] = {ENTRY(base)};
#endif

/* The highest level that this processor has. */
EXPORT int hush_level(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return 2;
  if (__builtin_cpu_supports("avx2")) return 1;
#endif
  return 0;
}

/* The digest of the source that this library was compiled from. */
EXPORT const char *hush_source(void) { return HUSH_SOURCE; }

/* The first and second numbers of consecutive pairs. */
EXPORT void hush_normals(int level, const uint64_t *a, const uint64_t *b, size_t pairs, double *first, double *second) {
  modes old = set_modes();
  LEVELS[level].transform(a, b, pairs, first, second);
  reset_modes(old);
}

struct cursor {
  size_t part, offset;
};

static struct cursor find(const uint64_t *starts, size_t parts, uint64_t at) {
  struct cursor here = {0, 0};
  while (here.part < parts && starts[here.part + 1] <= at) here.part++;
  here.offset = here.part < parts ? at - starts[here.part] : 0;
  return here;
}

static void add_part(const struct level *with, struct cursor *at, const uint64_t *starts, void *const *sums,
                     const uint8_t *doubles, const double *z, size_t n, double fine, double scale, double unit) {
  while (n) {
    size_t left = starts[at->part + 1] - starts[at->part] - at->offset, now = n < left ? n : left;
    if (now && doubles[at->part])
      with->add_double((double *)sums[at->part] + at->offset, z, now, fine, scale, unit);
    else if (now)
      with->add_float((float *)sums[at->part] + at->offset, z, now, fine, scale, unit);
    at->offset += now, z += now, n -= now;
    if (now == left) at->part++, at->offset = 0;
  }
}

/* One block of noise, whose first number is that of coordinate base, added to a vector that lies in several parts.
Part i holds the coordinates starts[i] to starts[i + 1] - 1, as double or float. */
EXPORT void hush_add(int level, const uint64_t *a, const uint64_t *b, uint64_t base, size_t parts,
                     const uint64_t *starts, void *const *sums, const uint8_t *doubles, double fine, double scale,
                     double unit) {
  modes old = set_modes();
  const struct level *with = &LEVELS[level];
  uint64_t left = starts[parts] - base;
  size_t pairs = left < PAIRS ? left : PAIRS, seconds = left <= PAIRS ? 0 : left < 2 * PAIRS ? left - PAIRS : PAIRS;
  struct cursor first = find(starts, parts, base), second = find(starts, parts, base + PAIRS);
  double z1[CHUNK], z2[CHUNK];
  for (size_t i = 0; i < pairs; i += CHUNK) {
    size_t n = pairs - i < CHUNK ? pairs - i : CHUNK;
    with->transform(a + i, b + i, n, z1, z2);
    add_part(with, &first, starts, sums, doubles, z1, n, fine, scale, unit);
    if (i < seconds)
      add_part(with, &second, starts, sums, doubles, z2, seconds - i < n ? seconds - i : n, fine, scale, unit);
  }
  reset_modes(old);
}
