/* Which calls the kernels for one row serve, and which are computed in bf16. */
#include "backends/cpu/attention/impl.h"
#include "ops/terms.h"

bool wn_attention_decodes(const struct wn_attention *a, bool backward) {
  return !backward && a->Tq == 1 && !wn_attention_looks(a) && !(a->open && a->sel.on);
}

bool wn_bf16_products(void) {
#if WN_HAS_AVX512
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

/* Terms of calls on bf16 rows that are computed in bf16. With other terms, or without AVX512_BF16, the rows are copied
 * to floats and computed in float (wide_rows.h). */
enum {
  BF16_SERVED = WN_TERM_BF16 | WN_TERM_SELECTION | WN_TERM_WINDOW | WN_TERM_SPAN | WN_TERM_THRESHOLD | WN_TERM_DROPOUT |
                WN_TERM_DOCUMENTS | WN_TERM_EVICTION | WN_TERM_EVICTION_BY_HEAD | WN_TERM_CONSTANT_KEYS |
                WN_TERM_SOME_HEADS | WN_TERM_SCORE_MAP
};
/* Terms of calls on floats that may be: those that act on logits alone, and not on q. */
enum {
  ROUNDS_SERVED = WN_TERM_HALF | WN_TERM_WINDOW | WN_TERM_DOCUMENTS | WN_TERM_EVICTION | WN_TERM_POSITIONS |
                  WN_TERM_SOME_HEADS | WN_TERM_SCORE_MAP
};

static bool bf16_terms(const struct wn_exec *exec, const struct wn_attention *a, uint32_t served) {
  return exec->ctx->isa == WN_ISA_AVX512 && wn_bf16_products() && !(wn_call_terms(a) & ~served);
}

bool wn_bf16_rounds(const struct wn_exec *exec, const struct wn_attention *a) {
  if (!a->rounds || a->k_type != WN_GGUF_F16 || a->D % 16 || wn_attention_decodes(a, false)) return false;
  return bf16_terms(exec, a, ROUNDS_SERVED);
}

bool wn_bf16_serves(const struct wn_exec *exec, const struct wn_attention *a, bool backward) {
  if (a->row_type != WN_BF16 || wn_attention_decodes(a, backward)) return false;
  return bf16_terms(exec, a, BF16_SERVED) && !(a->sel.on && a->sel.bilinear);
}
