/* y[m] = scale tok[ids[m]] + pos[positions[m]]; backward adds each row of dy to the table row it came from. MC
 * operations.
 *
 * The rows of dy for one table row are summed in double, in the order of m, before they are added: otherwise a frequent
 * token's gradient would be rounded at every addition. Linked lists in scratch (first[row], next[m]) find them, so that
 * table rows can be processed in parallel. */
#ifndef REAL
#include "backends/ref/ref.h"
#include "io/gguf_types.h"
#define REAL_FILE "backends/ref/embedding.c"
#include "backends/ref/twice.h"
WN_REF_ROWS(embedding_forward, struct wn_embedding, a->M, 1)
WN_REF_SLOT(embedding_backward, struct wn_embedding)

size_t wn_ref_embedding_scratch(const struct wn_exec *exec, const struct wn_embedding *a, bool backward) {
  (void)exec;
  if (!backward) return 0;
  const int64_t rows = a->pos && a->P > a->V ? a->P : a->V;
  return (size_t)(rows + a->M) * sizeof(int32_t);
}
#else

/* The same for a packed table. */
static void NAME(embedding_packed)(const struct wn_embedding *a, int64_t from, int64_t to) {
  const REAL *pos = a->pos; /* [P,C] */
  REAL *y = a->y;           /* [M,C] */
  const double scale = a->scale > 0 ? a->scale : 1;
  for (int64_t m = from; m < to; m++) {
    const REAL *p = pos ? pos + a->positions[m] * a->C : NULL;
    wn_gguf_type type;
    const char *row = wn_packed_row(a->packed, a->C, a->ids[m], &type);
    float t[WN_REF_BLOCKS];
    for (int64_t c0 = 0; c0 < a->C; c0 += WN_REF_BLOCKS) {
      const int64_t count = wn_ref_min(WN_REF_BLOCKS, a->C - c0);
      wn_gguf_decode(type, row, c0, count, t);
      for (int64_t c = 0; c < count; c++)
        y[m * a->C + c0 + c] = (REAL)(p ? scale * (double)t[c] + (double)p[c0 + c] : scale * (double)t[c]);
    }
  }
}

static void NAME(embedding_forward)(const struct wn_embedding *a, int64_t from, int64_t to) {
  if (a->packed) {
    NAME(embedding_packed)(a, from, to);
    return;
  }
  const REAL *tok = a->tok, *pos = a->pos; /* [V,C], [P,C] */
  REAL *y = a->y;                          /* [M,C] */
  const double scale = a->scale > 0 ? a->scale : 1;
  for (int64_t m = from; m < to; m++) {
    const REAL *t = tok + a->ids[m] * a->C, *p = pos ? pos + a->positions[m] * a->C : NULL;
    for (int64_t c = 0; c < a->C; c++)
      y[m * a->C + c] = (REAL)(p ? scale * (double)t[c] + (double)p[c] : scale * (double)t[c]);
  }
}

struct NAME(add_rows) {
  int64_t C;
  const int32_t *first, *next;
  double scale;
  const REAL *dy;
  REAL *to;
};
static void NAME(add_row)(void *args, int64_t r) {
  const struct NAME(add_rows) *x = args;
  const int64_t C = x->C;
  if (x->first[r] < 0) return;
  for (int64_t c0 = 0; c0 < C; c0 += WN_REF_BLOCK) {
    double sum[WN_REF_BLOCK] = {0};
    const int64_t count = wn_ref_min(WN_REF_BLOCK, C - c0);
    REAL *out = x->to + r * C + c0;
    for (int32_t m = x->first[r]; m >= 0; m = x->next[m])
      for (int64_t c = 0; c < count; c++) sum[c] += (double)x->dy[m * C + c0 + c];
    for (int64_t c = 0; c < count; c++) out[c] = (REAL)((double)out[c] + x->scale * sum[c]);
  }
}

/* to[rows,C] += scale times the rows of dy [M,C] by index[M]. */
static void NAME(add_rows)(const struct wn_exec *exec, int64_t M, int64_t C, int64_t rows, const int32_t *index,
                           double scale, const REAL *dy, REAL *to) {
  int32_t *first = exec->scratch, *next = first + rows; /* [rows], [M]; -1 ends a list */
  for (int64_t r = 0; r < rows; r++) first[r] = -1;
  for (int64_t m = M - 1; m >= 0; m--) {
    next[m] = first[index[m]];
    first[index[m]] = (int32_t)m;
  }
  wn_parallel_for(exec->threads, rows, NAME(add_row), &(struct NAME(add_rows)){C, first, next, scale, dy, to});
}

static wn_status NAME(embedding_backward)(const struct wn_exec *exec, const struct wn_embedding *a) {
  if (a->dtok) NAME(add_rows)(exec, a->M, a->C, a->V, a->ids, a->scale > 0 ? a->scale : 1, a->dy, a->dtok);
  if (a->dpos) NAME(add_rows)(exec, a->M, a->C, a->P, a->positions, 1, a->dy, a->dpos);
  return WN_OK;
}
#endif
