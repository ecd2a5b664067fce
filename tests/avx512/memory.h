/* Loads and stores (emulate.h). Masked ones touch only the lanes whose bits are set. */

static inline union wide wide_load(const void *p) {
  union wide r;
  memcpy(&r, p, sizeof r);
  return r;
}
static inline const void *wide_aligned(const void *p) {
  if ((uintptr_t)p % 64 != 0) __builtin_trap();
  return p;
}
static inline void wide_store(void *p, union wide a) {
  memcpy(p, &a, sizeof a);
}
/* Loads n lanes of `bytes` each; zero where the mask's bit is not set. */
static inline union wide wide_load_some(uint64_t mask, const void *p, int n, size_t bytes) {
  union wide r;
  memset(&r, 0, sizeof r);
  for (int k = 0; k < n; k++)
    if (mask >> k & 1) memcpy(r.u8 + (size_t)k * bytes, (const char *)p + (size_t)k * bytes, bytes);
  return r;
}
static inline void wide_store_some(uint64_t mask, void *p, union wide a, int n, size_t bytes) {
  for (int k = 0; k < n; k++)
    if (mask >> k & 1) memcpy((char *)p + (size_t)k * bytes, a.u8 + (size_t)k * bytes, bytes);
}

#define _mm512_loadu_ps(p) (wide_load(p).ps)
#define _mm512_load_ps(p) (wide_load(wide_aligned(p)).ps)
#define _mm512_loadu_si512(p) (wide_load(p).i)
#define _mm512_load_si512(p) (wide_load(wide_aligned(p)).i)
#define _mm512_storeu_ps(p, a) wide_store((p), (union wide){.ps = (a)})
#define _mm512_stream_ps(p, a) wide_store((void *)(uintptr_t)wide_aligned(p), (union wide){.ps = (a)})
#define _mm512_storeu_si512(p, a) wide_store((p), (union wide){.i = (a)})
#define _mm512_store_si512(p, a) wide_store((void *)(uintptr_t)wide_aligned(p), (union wide){.i = (a)})
#define _mm512_maskz_loadu_ps(m, p) (wide_load_some((__mmask16)(m), (p), 16, 4).ps)
#define _mm512_maskz_loadu_epi16(m, p) (wide_load_some((__mmask32)(m), (p), 32, 2).i)
#define _mm256_maskz_loadu_epi16(m, p) (wide_load_some((__mmask16)(m), (p), 16, 2).i2[0])
#define _mm_maskz_loadu_ps(m, p) (wide_load_some((m), (p), 4, 4).ps4[0])
#define _mm512_mask_storeu_ps(p, m, a) wide_store_some((__mmask16)(m), (p), (union wide){.ps = (a)}, 16, 4)
#define _mm256_mask_storeu_epi16(p, m, a) wide_store_some((__mmask16)(m), (p), (union wide){.i2 = {(a)}}, 16, 2)
#define _mm_mask_storeu_ps(p, m, a) wide_store_some((m), (p), (union wide){.ps4 = {(a)}}, 4, 4)

static inline __m512i wide_gather(union wide at, const char *base, int scale) {
  union wide r;
  for (int k = 0; k < 16; k++) memcpy(r.i32 + k, base + (int64_t)at.i32[k] * scale, 4);
  return r.i;
}
#define _mm512_i32gather_epi32(at, base, scale) wide_gather((union wide){.i = (at)}, (const void *)(base), (scale))
