/* The plan of a fused attention call: how work is divided, which kernels run, and which pairs of a tile are seen.
 *
 * A unit is what one thread must process in order: a sequence if selection ties its heads together, else one key-value
 * head's group. If there are enough units, each thread takes its own; else all threads share one sequence (forward:
 * chunks of rows with equal numbers of pairs; backward: columns in turn). Results do not depend on which thread takes a
 * unit. Results of forward do not depend on the number of threads at all, except in the last digits if dead keys are
 * skipped, since each chunk starts its own list. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#if WN_HAVE_LIBXSMM
#include <libxsmm.h>
#endif
#include "backends/cpu/attention/dead_keys.h"
#include "backends/cpu/attention/slots.h"
#include "backends/cpu/attention/sparse.h"
#include "backends/cpu/attention/terms.h"

wn_status wn_attention_plan_init(struct wn_attention_plan *p, const struct wn_exec *exec, const struct wn_attention *a,
                                 const struct wn_tile_ops *ops, bool backward) {
  p->exec = exec;
  p->a = a;
  p->ops = ops;
  p->rounds = !backward && wn_bf16_rounds(exec, a);
#if WN_HAS_AVX512
  const bool bf16 = a->row_type == WN_BF16 || p->rounds;
  p->bf16 = !bf16 ? NULL : wn_bf16_tiles_serve(a->D) ? &wn_bf16_ops_amx : &wn_bf16_ops_avx512;
#else
  p->bf16 = NULL;
#endif
  p->Dp = wn_div_up(a->D, 16) * 16;
  p->offset = a->Tk - a->Tq;
  p->first_block = p->offset / WN_TILE;
  p->blocks = wn_div_up(a->Tk, WN_TILE);
  p->group = a->H / a->Hkv;
  p->threads = exec->threads;
  p->units = a->sel.on && wn_selection_groups(a) == 1 ? a->B : a->B * a->Hkv;
  const int64_t row_blocks = p->blocks - p->first_block, threads = exec->threads;
  const bool balanced = p->units % threads == 0 || p->units >= 4 * threads;
  /* A team needs several row blocks (backward: column blocks) per thread. */
  p->own = balanced || (backward ? p->blocks : row_blocks) < 2 * threads || (a->sel.on && p->units != a->B);
  p->chunks = threads;
  if (p->own && p->units < threads) p->threads = (int)p->units;
  wn_sparse_init(p, backward);
  p->dead_keys.wanted = backward ? wn_dead_keys_wanted_backward(p) : wn_dead_keys_wanted(a);
  p->dead_keys.on = false; /* until values may be read */
  p->dead_keys.limit = p->dead_keys.wanted ? (float)log(a->sel.dead_share / (double)a->Tk) : -INFINITY;
  return WN_OK;
}

#if WN_HAVE_LIBXSMM
static wn_tile_kernel dispatch(bool avx512, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc,
                               float beta, int flags) {
  const libxsmm_blasint a = (libxsmm_blasint)lda, b = (libxsmm_blasint)ldb, c = (libxsmm_blasint)ldc;
  /* The two instruction sets need separate entries in libxsmm's registry. Without a prefetch in the kernel, the
   * strategy changes only the entry's key. */
  const int prefetch = avx512 ? LIBXSMM_PREFETCH_NONE : LIBXSMM_PREFETCH_SIGONLY;
  const float alpha = 1.0f;
  return (wn_tile_kernel)libxsmm_smmdispatch((libxsmm_blasint)m, (libxsmm_blasint)n, (libxsmm_blasint)k, &a, &b, &c,
                                             &alpha, &beta, &flags, &prefetch);
}

/* All widths for n rows, for relative positions. */
static bool skew_kernels(struct wn_attention_plan *p, bool avx512, int64_t n) {
  struct wn_tile_kernels *k = &p->kernels;
  const int64_t D = p->a->D, Dp = p->Dp;
  if (n <= 0 || p->a->relative.P <= 0 || k->skew_logits[WN_TILE / 16][n]) return true;
  for (int w = 1; w <= WN_TILE / 16; w++) {
    const int64_t width = 16 * w + WN_SKEW_ROWS, stride = wn_terms_relative_stride(p);
    k->skew_logits[w][n] = dispatch(avx512, width, n, D, stride, Dp, width, 0.0f, LIBXSMM_GEMM_FLAG_NONE);
    k->skew_values[w][n] = dispatch(avx512, Dp, n, width, Dp, width, Dp, 1.0f, LIBXSMM_GEMM_FLAG_NONE);
    k->skew_columns[w][n] = dispatch(avx512, Dp, width, n, Dp, width, Dp, 1.0f, LIBXSMM_GEMM_FLAG_TRANS_B);
    if (!k->skew_logits[w][n] || !k->skew_values[w][n] || !k->skew_columns[w][n]) return false;
  }
  return true;
}

/* All widths for tiles of n rows. */
static bool kernels_for_rows(struct wn_attention_plan *p, bool avx512, int64_t n) {
  struct wn_tile_kernels *k = &p->kernels;
  const int64_t D = p->a->D, Dp = p->Dp;
  if (n <= 0 || p->bf16 || k->logits[WN_TILE / 16][n]) return true;
  for (int w = 1; w <= WN_TILE / 16; w++) {
    const int64_t width = 16 * w;
    k->logits[w][n] = dispatch(avx512, width, n, D, WN_TILE, Dp, WN_TILE, 0.0f, LIBXSMM_GEMM_FLAG_NONE);
    k->values[w][n] = dispatch(avx512, Dp, n, width, Dp, WN_TILE, Dp, 1.0f, LIBXSMM_GEMM_FLAG_NONE);
    k->columns[w][n] = dispatch(avx512, Dp, width, n, Dp, WN_TILE, Dp, 1.0f, LIBXSMM_GEMM_FLAG_TRANS_B);
    if (!k->logits[w][n] || !k->values[w][n] || !k->columns[w][n]) return false;
  }
  return true;
}

/* Does libxsmm have its table of kernels? Without memory for it, a search in the table would end the process. */
static bool registry_is_there(void) {
  static atomic_bool there;
  libxsmm_registry_info info; /* counts all of the table: asked until it is there, no more */
  if (!atomic_load(&there)) atomic_store(&there, libxsmm_get_registry_info(&info) == 0);
  return atomic_load(&there);
}

wn_status wn_attention_plan_kernels(struct wn_attention_plan *p, bool avx512) {
  memset(&p->kernels, 0, sizeof p->kernels);
  libxsmm_init();
  if (!registry_is_there()) return wn_fail(p->exec->ctx, WN_ERR_MEMORY, "out of memory: kernels of attention");
  const int target = libxsmm_get_target_archid();
  if (!avx512 && target > LIBXSMM_X86_AVX2) libxsmm_set_target_archid(LIBXSMM_X86_AVX2);
  bool ok = true;
  if (p->a->open) ok = kernels_for_rows(p, avx512, WN_TILE) && kernels_for_rows(p, avx512, p->a->Tq % WN_TILE);
  /* Only the first and the last block may have another number of rows. */
  const int64_t blocks[3] = {p->first_block, wn_min_i64(p->first_block + 1, p->blocks - 1), p->blocks - 1};
  for (int i = 0; i < 3 && !p->a->open; i++) {
    struct wn_attention_rows r;
    wn_attention_rows_init(p, 0, blocks[i], &r);
    ok = ok && kernels_for_rows(p, avx512, r.rows);
    for (int64_t at = r.p0, next; at < r.p0 + r.rows; at = next) {
      next = wn_min_i64((at / WN_STRIP + 1) * WN_STRIP, r.p0 + r.rows);
      ok = ok && kernels_for_rows(p, avx512, next - at);
    }
    for (int64_t at = r.p0, next; at < r.p0 + r.rows; at = next) {
      next = wn_min_i64((at / WN_SKEW_ROWS + 1) * WN_SKEW_ROWS, r.p0 + r.rows);
      ok = ok && skew_kernels(p, avx512, next - at);
    }
  }
  if (libxsmm_get_target_archid() != target) libxsmm_set_target_archid(target);
  if (ok) return WN_OK;
  return wn_fail(p->exec->ctx, WN_ERR_UNSUPPORTED, "attention: libxsmm has no kernel for head size %lld on this CPU",
                 (long long)p->a->D);
}
#else
wn_status wn_attention_plan_kernels(struct wn_attention_plan *p, bool avx512) {
  (void)avx512;
  memset(&p->kernels, 0, sizeof p->kernels); /* our own kernels serve all shapes */
  return WN_OK;
}
#endif

void wn_attention_unit_init(const struct wn_attention_plan *p, int64_t index, struct wn_attention_unit *u) {
  const struct wn_attention *a = p->a;
  if (p->units == a->B) {
    *u = (struct wn_attention_unit){.b = index, .heads = a->H, .groups = a->Hkv};
  } else {
    const int64_t g = index % a->Hkv;
    *u = (struct wn_attention_unit){.b = index / a->Hkv, .h0 = g * p->group, .heads = p->group, .g0 = g, .groups = 1};
  }
  u->select = a->sel.on && !a->sel.bilinear ? a->sel.head : -1;
  u->choice = wn_selection_groups(a) > 1 ? u->g0 : 0;
}

void wn_attention_rows_init(const struct wn_attention_plan *p, int64_t b, int64_t block, struct wn_attention_rows *r) {
  r->b = b;
  r->block = block;
  r->p0 = wn_max_i64(block * WN_TILE, p->offset);
  r->r0 = r->p0 - p->offset;
  r->rows = wn_min_i64((block + 1) * WN_TILE, p->a->Tk) - r->p0;
  r->doc_min = r->doc_max = 0;
  if (!p->a->doc_start) return;
  const int32_t *doc = p->a->doc_start + b * p->a->Tk + r->p0;
  r->doc_min = r->doc_max = doc[0];
  for (int64_t i = 1; i < r->rows; i++) {
    r->doc_min = wn_min_i64(r->doc_min, doc[i]);
    r->doc_max = wn_max_i64(r->doc_max, doc[i]);
  }
}

/* Sets bits lo..hi. */
static uint64_t bit_range(int64_t lo, int64_t hi) {
  if (lo < 0) lo = 0;
  if (hi > WN_TILE - 1) hi = WN_TILE - 1;
  if (lo > hi) return 0;
  return (~UINT64_C(0) >> (63 - hi)) & (~UINT64_C(0) << lo);
}

static uint64_t bit_at(int64_t at) {
  return at >= 0 && at < WN_TILE ? UINT64_C(1) << at : 0;
}

/* Does anything need the selections of keys that no row sees any more? */
static bool all_selections(const struct wn_attention *a) {
  return a->sel.on && (a->sel.F || a->sel.f_out || a->sel.mem);
}

/* Combines the keep rules, pair by pair. */
static void strip_masks(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t j0,
                        struct wn_attention_strip *s) {
  const struct wn_attention *a = p->a;
  const bool apart = j0 / WN_TILE < wn_sparse_edge(p, r->block); /* heads see this tile by gathered distances */
  const int64_t pos0 = r->p0 + s->row;
  /* Selection covers the whole width of a tile, even beyond the strip. */
  const bool past = j0 + s->width - 1 <= pos0 && r->doc_max <= j0 && (!a->sel.on || s->width == WN_TILE);
  const bool slots = a->slots.at != NULL; /* of one group only, since the heads share the masks */
  const uint64_t zero = slots && a->sel.protect_first ? wn_slots_first(a, r->b, 0, j0) : 0;
  const bool rules =
      !apart && wn_terms_mask(a) && (slots || !wn_terms_all(a, pos0 - j0 - s->width + 1, pos0 + s->rows - 1 - j0));
  uint64_t left[WN_TILE];
  const enum wn_terms_evicted evicted =
      wn_terms_evicted_apart(a) ? WN_EVICTED_NONE
                                : wn_terms_evicted(a, r->b, 0, wn_slot_position(a, r->b, 0, pos0), s->rows, j0, left);
  const bool full = past && !rules && evicted == WN_EVICTED_NONE;
  const bool allow_all = !a->sel.on || (past && (slots ? zero == 0 : r->doc_max < j0 || !a->sel.protect_first) &&
                                        (j0 + s->width - 1 < pos0 || !a->sel.protect_self));
  s->seen = s->allow = s->past = NULL;
  s->empty = false, s->skip = apart;
  if (full && allow_all) return;
  uint64_t some = 0, shown = 0;
  for (int64_t i = 0; i < s->rows; i++) {
    const int64_t at = pos0 + i - j0, first = (a->doc_start ? a->doc_start[r->b * a->Tk + pos0 + i] : 0) - j0;
    uint64_t seen = bit_range(first, at);
    some |= seen;
    s->masks[2][i] = seen;
    s->masks[0][i] = seen;
    if (rules)
      s->masks[0][i] &= slots ? wn_slots_seen(a, r->b, 0, r->r0 + s->row + i, j0) : wn_sparse_seen(p, pos0 + i, j0);
    if (evicted != WN_EVICTED_NONE) s->masks[0][i] &= left[i];
    shown |= s->masks[0][i];
    if (a->sel.protect_self) seen &= ~bit_at(at);
    if (a->sel.protect_first) seen &= ~(slots ? zero : bit_at(first));
    s->masks[1][i] = seen;
  }
  s->skip = apart || shown == 0;
  /* Selections of evicted keys matter only if F is read. */
  const bool forgotten = evicted == WN_EVICTED_ALL && !all_selections(a);
  s->empty = a->sel.on && !forgotten ? some == 0 : shown == 0;
  if (!full) s->seen = s->masks[0];
  if (!past) s->past = s->masks[2];
  if (!allow_all) s->allow = s->masks[1];
}

int64_t wn_attention_first_column(const struct wn_attention_plan *p, const struct wn_attention_rows *r) {
  const struct wn_attention *a = p->a;
  int64_t c = r->doc_min / WN_TILE;
  if (a->window > 0 && !a->slots.at && !all_selections(a)) c = wn_max_i64(c, (r->p0 - a->window + 1) / WN_TILE);
  return a->sel.on ? c : wn_max_i64(c, wn_sparse_edge(p, r->block));
}

int wn_attention_strips(const struct wn_attention_plan *p, const struct wn_attention_rows *r, int64_t c,
                        struct wn_attention_strip *strips) {
  const int64_t j0 = c * WN_TILE;
  if (c > r->block || c < wn_attention_first_column(p, r)) return 0;
  if (c < r->block) {
    strips[0].row = 0;
    strips[0].rows = r->rows;
    strips[0].width = WN_TILE;
    strip_masks(p, r, j0, &strips[0]);
    return strips[0].empty ? 0 : 1;
  }
  int n = 0;
  for (int64_t at = r->p0, next; at < r->p0 + r->rows; at = next) {
    struct wn_attention_strip *s = &strips[n++];
    next = wn_min_i64((at / WN_STRIP + 1) * WN_STRIP, r->p0 + r->rows);
    s->row = at - r->p0;
    s->rows = next - at;
    s->width = wn_div_up(next - j0, 16) * 16;
    strip_masks(p, r, j0, s);
  }
  return n;
}

int64_t wn_attention_chunk(const struct wn_attention_plan *p, int64_t n) {
  const int64_t lo = p->first_block, hi = p->blocks;
  if (n <= 0) return lo;
  if (n >= p->chunks) return hi;
  /* Row block i costs i + 1 tiles, the first x blocks x (x + 1) / 2. */
  const double before = 0.5 * (double)lo * (double)(lo + 1), all = 0.5 * (double)hi * (double)(hi + 1) - before;
  const double goal = before + all * (double)n / (double)p->chunks;
  return wn_max_i64(lo, wn_min_i64(hi, (int64_t)floor(sqrt(0.25 + 2.0 * goal))));
}
