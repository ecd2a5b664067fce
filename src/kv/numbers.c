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

/* Row `row` of head `head` (of all sequences' heads) in the array of numbers. */
static int64_t numbers_at(const struct wn_kv_cache *c, int64_t head, int64_t row) {
  return (head * c->shape.width + row) * c->shape.capacity;
}

static size_t numbers_bytes(const struct wn_kv_cache *c) {
  const struct wn_kv_shape *s = &c->shape;
  return (size_t)(s->B * s->Hkv * s->width * s->capacity) * wn_dtype_size(s->dtype);
}

/* The array of numbers for the host to read and write; it is closed by numbers_close. */
static wn_status numbers_open(wn_context *ctx, const struct wn_kv_cache *c, char **out) {
  void *opened = NULL;
  const struct wn_memory *memory = wn_kv_memory(&c->shape);
  WN_TRY(wn_memory_open(ctx, memory, "numbers of keys", c->numbers, numbers_bytes(c), &opened));
  *out = opened;
  return WN_OK;
}
static wn_status numbers_close(wn_context *ctx, const struct wn_kv_cache *c, char *opened, bool changed) {
  const struct wn_memory *memory = wn_kv_memory(&c->shape);
  return wn_memory_close(ctx, memory, c->numbers, numbers_bytes(c), opened, changed);
}

/* Fills the slots of one map from its rows x. */
static void numbers_fill(struct wn_kv_cache *c, int64_t i, const void *x, struct wn_stride stride, int64_t t0,
                         int64_t T, void *numbers) {
  const struct wn_kv_shape *s = &c->shape;
  for (int64_t head = 0; head < s->B * s->Hkv; head++) {
    const int64_t from = head / s->Hkv * stride.b + head % s->Hkv * stride.h, to = numbers_at(c, head, i) + c->count;
    double sum = c->total[head * s->keyed + i];
    for (int64_t t = 0; t < T; t++) {
      const double now = wn_number(x, from + (t0 + t) * stride.t, s->dtype);
      sum += now;
      wn_number_set(numbers, to + t, s->dtype, s->map[i].kind->sums ? sum : now);
      if (s->width > s->keyed) wn_number_set(numbers, to + t + s->keyed * s->capacity, s->dtype, now);
    }
    c->next[head * s->keyed + i] = sum;
  }
}

wn_status wn_kv_numbers_put(wn_context *ctx, struct wn_kv_cache *c, const struct wn_kv_rows *r, int64_t t0, int64_t T) {
  const struct wn_kv_shape *s = &c->shape;
  const struct wn_memory *memory = s->memory ? s->memory : &wn_host_memory;
  char *numbers;
  WN_TRY(numbers_open(ctx, c, &numbers));
  wn_status status = WN_OK;
  for (int64_t i = 0; i < s->keyed && status == WN_OK; i++) {
    const struct wn_stride z = r->s_number[i];
    const size_t bytes =
        (size_t)((s->B - 1) * z.b + (t0 + T - 1) * z.t + (s->Hkv - 1) * z.h + 1) * wn_dtype_size(s->dtype);
    void *x;
    status = wn_memory_open(ctx, memory, "numbers of keys", r->number[i], bytes, &x);
    if (status != WN_OK) break;
    numbers_fill(c, i, x, z, t0, T, numbers);
    status = wn_memory_close(ctx, memory, NULL, 0, x, false);
  }
  const wn_status closed = numbers_close(ctx, c, numbers, status == WN_OK);
  return status != WN_OK ? status : closed;
}

void wn_kv_numbers_advance(struct wn_kv_cache *c) {
  const int64_t sums = c->shape.B * c->shape.Hkv * c->shape.keyed;
  for (int64_t x = 0; x < sums; x++) c->total[x] = c->next[x];
}

wn_status wn_kv_numbers_take_back(wn_context *ctx, const struct wn_kv_cache *c, const int64_t *rows, int64_t first,
                                  int64_t n, struct wn_kv_cache *to) {
  const int64_t keyed = c->shape.keyed, totals = c->shape.Hkv * keyed, each = to->shape.B / c->shape.B;
  char *numbers = NULL;
  if (keyed == 0) return WN_OK;
  WN_TRY(numbers_open(ctx, c, &numbers));
  for (int64_t x = 0; x < to->shape.B * totals; x++) {
    const int64_t b = x / totals, of = (rows ? rows[b] : b / each) * totals + x % totals;
    const int64_t at = numbers_at(c, of / keyed, keyed + of % keyed);
    double sum = c->total[of];
    for (int64_t j = first; c->shape.width > keyed && j < first + n; j++)
      sum -= wn_number(numbers, at + j, c->shape.dtype);
    to->total[x] = sum;
  }
  return numbers_close(ctx, c, numbers, false);
}

void wn_kv_numbers_held(const struct wn_kv_cache *cache, int64_t row, struct wn_policy_held *held) {
  const struct wn_kv_shape *s = &cache->shape;
  for (int64_t i = 0; i < s->keyed; i++) {
    const struct wn_policy_rows all = {
        .data = cache->numbers_read, .head = s->width * s->capacity, .token = 1, .type = WN_GGUF_F32};
    const int64_t first = (row * (s->Hkv / s->groups) * s->width + i) * s->capacity;
    held->number[i] = (struct wn_policy_number){&s->map[i], wn_policy_rows_from(all, s->dtype, first)};
  }
}
