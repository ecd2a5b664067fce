/* The numbers of the keys in a cache (cache.h), which keyed maps of the logits read (ops/score.h). A number that is a
 * running sum continues that over all tokens seen, in doubles, which is exact (ops.h, WN_SIGMOID_LOG): a text gives the
 * same bits however it is cut, and what is undone leaves no trace. */
#include "base/memory.h"
#include "kv/cache.h"

struct wn_kv_rows wn_kv_rows_of(const struct wn_attention *op) {
  struct wn_kv_rows rows = {
      .k = op->k, .v = op->v, .sk = op->sel.sk, .s_k = op->s_k, .s_v = op->s_v, .s_sk = op->sel.s_sk};
  int n = 0;
  for (const struct wn_score_map *t = op->map; t < op->map + op->maps; t++)
    if (t->kind->keyed_double) rows.number[n] = t->key, rows.s_number[n++] = t->s_key;
  return rows;
}

struct wn_kv_rows wn_kv_rows_of_heads(const struct wn_kv_rows *rows, wn_dtype dtype, int64_t g0) {
  struct wn_kv_rows of = *rows;
  of.k = wn_element(rows->k, g0 * rows->s_k.h, dtype);
  of.v = wn_element(rows->v, g0 * rows->s_v.h, dtype);
  of.sk = wn_element(rows->sk, g0 * rows->s_sk.h, dtype);
  for (int i = 0; i < WN_SCORE_MAPS_MAX; i++)
    of.number[i] = wn_element(rows->number[i], g0 * rows->s_number[i].h, dtype);
  return of;
}

static size_t numbers_bytes(const struct wn_kv_cache *c) {
  const struct wn_kv_shape *s = &c->shape;
  return (size_t)(s->B * s->Hkv * s->width * s->capacity) * wn_dtype_size(s->dtype);
}

size_t wn_kv_sums_bytes(const struct wn_kv_shape *s) {
  return s->width > s->gates ? (size_t)(s->gates * s->B * s->Hkv) * sizeof(double) : 0;
}

/* A gate of map i, of those that rows have side by side, in row `row` of the cache. */
static wn_status numbers_put(const struct wn_exec *exec, struct wn_kv_cache *c, const struct wn_kv_rows *r, int64_t t0,
                             int64_t T, int64_t i, int64_t gate, int64_t row) {
  const struct wn_kv_shape *s = &c->shape;
  const int64_t heads = s->B * s->Hkv, each = s->width * s->capacity;
  void *to = wn_element(c->numbers, row * s->capacity + c->count, s->dtype);
  for (int64_t at = row; at < s->width; at += s->gates)
    WN_TRY(wn_op_gather_forward(
        exec, &(struct wn_gather){.B = s->B,
                                  .H = s->Hkv,
                                  .T = T,
                                  .D = 1,
                                  .x = wn_element(r->number[i], t0 * r->s_number[i].t + gate, s->dtype),
                                  .s_x = r->s_number[i],
                                  .y = wn_element(to, (at - row) * s->capacity, s->dtype),
                                  .s_y = {s->Hkv * each, 1, each}}));
  if (!s->map[i].kind->sums) return WN_OK;
  return wn_op_sigmoid_forward(exec, &(struct wn_sigmoid){.kind = WN_SIGMOID_SUMS,
                                                          .n = heads * T,
                                                          .T = T,
                                                          .W = 1,
                                                          .x = to,
                                                          .s_x = {each, 1, 0},
                                                          .from = c->seen > 0 ? c->total + row * heads : NULL,
                                                          .to = c->next + row * heads});
}

wn_status wn_kv_numbers_put(const struct wn_exec *exec, struct wn_kv_cache *c, const struct wn_kv_rows *r, int64_t t0,
                            int64_t T) {
  int64_t row = 0;
  for (int64_t i = 0; i < c->shape.keyed; i++)
    for (int64_t gate = 0; gate < c->shape.map[i].gates; gate++) WN_TRY(numbers_put(exec, c, r, t0, T, i, gate, row++));
  return WN_OK;
}

void wn_kv_numbers_advance(struct wn_kv_cache *c) {
  double *total = c->total;
  c->total = c->next, c->next = total;
}

/* The sums of `to` from those of c. */
static void numbers_take_back(const struct wn_kv_cache *c, const char *numbers, const double *total,
                              const int64_t *rows, int64_t first, int64_t n, const struct wn_kv_shape *s, double *to) {
  const int64_t Hkv = s->Hkv, gates = s->gates, each = s->B / c->shape.B, capacity = c->shape.capacity;
  for (int64_t x = 0; x < gates * s->B * Hkv; x++) {
    const int64_t i = x / (s->B * Hkv), b = x / Hkv % s->B, head = (rows ? rows[b] : b / each) * Hkv + x % Hkv;
    const int64_t at = (head * s->width + gates + i) * capacity;
    to[x] = total[i * c->shape.B * Hkv + head];
    for (int64_t j = first; j < first + n; j++) to[x] -= wn_number(numbers, at + j, s->dtype);
  }
}

wn_status wn_kv_numbers_take_back(wn_context *ctx, const struct wn_kv_cache *c, const int64_t *rows, int64_t first,
                                  int64_t n, struct wn_kv_cache *to) {
  const struct wn_memory *memory = wn_kv_memory(&c->shape);
  const size_t bytes = numbers_bytes(c), sums = wn_kv_sums_bytes(&c->shape), all = wn_kv_sums_bytes(&to->shape);
  void *numbers = NULL, *total = NULL, *sum = NULL;
  if (!c->total) return WN_OK;
  wn_status status = wn_memory_open(ctx, memory, "numbers of keys", c->numbers, bytes, &numbers);
  if (status == WN_OK) status = wn_memory_open(ctx, memory, "running sums", c->total, sums, &total);
  if (status == WN_OK) status = wn_memory_open(ctx, memory, "running sums", to->total, all, &sum);
  const bool opened = status == WN_OK;
  if (opened) numbers_take_back(c, numbers, total, rows, first, n, &to->shape, sum);
  (void)wn_memory_close(ctx, memory, NULL, 0, numbers, false);
  (void)wn_memory_close(ctx, memory, NULL, 0, total, false);
  const wn_status closed = wn_memory_close(ctx, memory, to->total, all, sum, opened);
  return opened ? closed : status;
}

void wn_kv_numbers_held(const struct wn_kv_cache *cache, const void *numbers, int64_t row,
                        struct wn_policy_held *held) {
  const struct wn_kv_shape *s = &cache->shape;
  int64_t first = row * (s->Hkv / s->groups) * s->width * s->capacity;
  for (int64_t i = 0; i < s->keyed; i++) {
    const struct wn_policy_rows all = {
        .data = numbers, .head = s->width * s->capacity, .token = 1, .type = WN_GGUF_F32};
    held->number[i] = (struct wn_policy_number){&s->map[i], wn_policy_rows_from(all, s->dtype, first), s->capacity};
    first += s->map[i].gates * s->capacity;
  }
}
