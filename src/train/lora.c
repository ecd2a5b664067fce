/* Low-rank updates (Hu et al. 2021, "LoRA", arXiv 2106.09685, section 4.1): W = W0 + alpha/r B A, with A [r, in]
 * random, B [out, r] 0 at the start, W0 fixed. The projections of queries, keys and values share one tensor but have
 * updates of their own.
 *
 * The model always holds the merged projections W, so steps, evaluations and checkpoints need no special case:
 *   dB = alpha/r dW A^T,  dA = alpha/r B^T dW,  and after the update  W = W0 + alpha/r B A
 * Without dropout on the update this equals running it as a separate branch. Cost per step and projection: 6 r in out
 * operations, and the product dW of 2 M in out operations, which a separate branch would save: a twelfth of a step
 * where only the attention's projections learn. Memory: W0 and dW, beside A, B and their optimizer state. */
#include "train/lora.h"

#include <stdio.h>

#include "base/rng.h"

static void *lora_at(const struct wn_lora *l, const void *array, int64_t elements) {
  return (char *)(uintptr_t)array + (size_t)elements * wn_dtype_size(l->exec.dtype);
}

static void *weight(const struct wn_lora *l, const struct wn_lora_map *m) {
  return lora_at(l, l->model->params, (int64_t)l->model->table.rows[m->row].offset + m->first * m->columns);
}

/* Lists the projections of one tensor: a fused tensor has three. Returns how many; out may be NULL. */
static int maps_of(const struct wn_model *model, int row, struct wn_lora_map *out) {
  const struct wn_param *p = &model->table.rows[row];
  const wn_model_config *c = &model->config;
  static const char fused[] = ".attn.qkv.weight", last[] = ".attn.out.weight";
  const size_t n = strlen(p->name);
  const bool is_fused = n > sizeof fused && !strcmp(p->name + n - (sizeof fused - 1), fused);
  const bool is_last = n > sizeof last && !strcmp(p->name + n - (sizeof last - 1), last);
  if (!is_fused && !is_last) return 0;
  const int64_t HD = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
  const struct {
    const char *name;
    int64_t rows;
  } parts[] = {{"q", HD}, {"k", kv}, {"v", kv}};
  const int count = is_fused ? 3 : 1;
  int64_t first = 0;
  for (int i = 0; out && i < count; i++) {
    out[i] = (struct wn_lora_map){
        .row = row, .first = first, .rows = is_fused ? parts[i].rows : p->shape[0], .columns = p->shape[1]};
    const int stem = (int)(n - (is_fused ? strlen("qkv.weight") : strlen("out.weight")));
    snprintf(out[i].name, sizeof out[i].name, "%.*s%s", stem, p->name, is_fused ? parts[i].name : "out");
    first += out[i].rows;
  }
  return count;
}

/* B A as a linear operation, whose forward and two gradients are the three products needed. */
static struct wn_linear map_of(const struct wn_lora *l, const struct wn_lora_map *m) {
  return (struct wn_linear){.M = m->rows, .N = l->rank, .K = m->columns, .w = m->a};
}
static struct wn_linear to_b(const struct wn_lora *l, const struct wn_lora_map *m, const void *dw, void *db) {
  struct wn_linear a = map_of(l, m);
  a.x = dw, a.ldx = m->columns;
  a.y = db, a.ldy = l->rank;
  a.accumulate = true;
  return a;
}
static struct wn_linear to_a(const struct wn_lora *l, const struct wn_lora_map *m, const void *dw, void *da) {
  struct wn_linear a = map_of(l, m);
  a.x = dw, a.ldx = m->columns;
  a.dy = l->scaled, a.lddy = l->rank;
  a.dw = da;
  return a;
}
static struct wn_linear to_w(const struct wn_lora *l, const struct wn_lora_map *m) {
  struct wn_linear a = map_of(l, m);
  a.dy = l->scaled, a.lddy = l->rank;
  a.dx = weight(l, m), a.lddx = m->columns;
  a.accumulate_dx = true;
  return a;
}

/* y = f x */
static wn_status lora_scaled(const struct wn_lora *l, int64_t n, double f, const void *x, void *y) {
  return wn_op_mix_forward(&l->exec, &(struct wn_mix){.n = n, .f = f, .x = x, .y = y});
}

/* scaled = alpha/rank B */
static wn_status scale_b(const struct wn_lora *l, const struct wn_lora_map *m) {
  return lora_scaled(l, m->rows * l->rank, l->scale, m->b, l->scaled);
}

static wn_status start(struct wn_lora *l, int index, uint64_t seed) {
  const struct wn_lora_map *m = &l->maps[index];
  const struct wn_memory *memory = l->exec.backend->memory;
  const size_t e = wn_dtype_size(l->exec.dtype), bytes = (size_t)(l->rank * m->columns) * e;
  const double std = 1 / sqrt((double)m->columns);
  void *a;
  WN_TRY(memory->copy(l->exec.ctx, m->base, weight(l, m), (size_t)(m->rows * m->columns) * e));
  WN_TRY(wn_memory_open(l->exec.ctx, memory, "low-rank A", m->a, bytes, &a));
  for (int64_t i = 0; i < l->rank * m->columns; i++) {
    const uint64_t tensor = (uint64_t)l->model->table.count + (uint64_t)index;
    wn_number_set(a, i, l->exec.dtype,
                  (double)(float)(std * wn_random_normal(seed, WN_STREAM_INIT, tensor, (uint64_t)i)));
  }
  return wn_memory_close(l->exec.ctx, memory, m->a, bytes, a, true);
}

static void lora_lay(struct wn_lora *l) {
  const size_t e = wn_dtype_size(l->model->dtype);
  int64_t most = 0;
  for (int i = 0; i < l->count; i++) {
    struct wn_lora_map *m = &l->maps[i];
    const struct wn_array rows[] = {
        WN_ARRAY_SIZED(m->a, e, "low-rank A", true, WN_DIMS(l->rank, m->columns)),
        WN_ARRAY_SIZED(m->b, e, "low-rank B", true, WN_DIMS(l->rank, m->rows)),
        WN_ARRAY_SIZED(m->base, e, "projections as they were", true, WN_DIMS(m->rows, m->columns)),
    };
    WN_ARRAYS_LAY(&l->arrays, rows);
    if (m->rows > most) most = m->rows;
  }
  const struct wn_array scaled[] = {WN_ARRAY_SIZED(l->scaled, e, "low-rank B, scaled", true, WN_DIMS(most, l->rank))};
  WN_ARRAYS_LAY(&l->arrays, scaled);
}

wn_status wn_lora_init(wn_context *ctx, struct wn_model *model, int64_t rank, double alpha, uint64_t seed,
                       const bool *frozen, size_t *gradients, struct wn_lora *l) {
  memset(l, 0, sizeof *l);
  l->model = model;
  l->rank = rank;
  l->scale = alpha / (double)rank;
  l->exec = (struct wn_exec){.ctx = ctx, .backend = model->backend, .threads = ctx->threads, .dtype = model->dtype};
  for (int i = 0; i < model->table.count; i++)
    if (!frozen || !frozen[i]) l->count += maps_of(model, i, NULL);
  WN_TRY(WN_ALLOC(ctx, "low-rank maps", l->count, &l->maps));
  size_t scratch = 0;
  for (int i = 0, n = 0; i < model->table.count; i++)
    if (!frozen || !frozen[i]) n += maps_of(model, i, l->maps + n);
  for (int i = 0; i < l->count; i++) {
    struct wn_lora_map *m = &l->maps[i];
    size_t a, b, w;
    if (!wn_mul_size((size_t)rank, (size_t)m->columns, &a) || !wn_mul_size((size_t)rank, (size_t)m->rows, &b) ||
        !wn_mul_size((size_t)m->rows, (size_t)m->columns, &w) || a > SIZE_MAX / 64 || b > SIZE_MAX / 64 ||
        w > SIZE_MAX / 64 || !wn_add_size(*gradients, a + 15 + b + 15, &(size_t){0}))
      return wn_fail(ctx, WN_ERR_CONFIG, "train.lora.rank is %lld: the updates do not fit in memory", (long long)rank);
    m->a_at = *gradients;
    *gradients += (a + 15) & ~(size_t)15;
    m->b_at = *gradients;
    *gradients += (b + 15) & ~(size_t)15;
  }
  l->arrays.memory = model->backend->memory;
  lora_lay(l);
  WN_TRY(wn_arrays_allocate(ctx, &l->arrays, "low-rank updates"));
  lora_lay(l);
  for (int i = 0; i < l->count; i++) {
    const struct wn_lora_map *m = &l->maps[i];
    const struct wn_linear b = to_b(l, m, m->base, m->b), a = to_a(l, m, m->base, m->a), w = to_w(l, m);
    const size_t need[] = {wn_op_linear_scratch(&l->exec, &b, false), wn_op_linear_scratch(&l->exec, &a, true),
                           wn_op_linear_scratch(&l->exec, &w, true)};
    for (int k = 0; k < 3; k++)
      if (need[k] > scratch) scratch = need[k];
    WN_TRY(start(l, i, seed));
  }
  WN_TRY(model->backend->memory->allocate(ctx, "scratch of low-rank updates", scratch, &l->exec.scratch));
  l->exec.scratch_bytes = scratch;
  return WN_OK;
}

void wn_lora_clear(struct wn_lora *l) {
  wn_arrays_clear(&l->arrays);
  if (l->exec.backend) l->exec.backend->memory->release(l->exec.scratch);
  wn_free(l->maps);
  memset(l, 0, sizeof *l);
}

bool wn_lora_has(const struct wn_lora *l, int row) {
  for (int i = 0; i < l->count; i++)
    if (l->maps[i].row == row) return true;
  return false;
}

wn_status wn_lora_backward(struct wn_lora *l, const size_t *grad_at, void *grads) {
  for (int i = 0; i < l->count; i++) {
    const struct wn_lora_map *m = &l->maps[i];
    const void *dw = lora_at(l, grads, (int64_t)grad_at[m->row] + m->first * m->columns);
    void *db = lora_at(l, grads, (int64_t)m->b_at);
    WN_TRY(scale_b(l, m));
    const struct wn_linear a = to_a(l, m, dw, lora_at(l, grads, (int64_t)m->a_at));
    WN_TRY(wn_op_linear_backward(&l->exec, &a));
    const struct wn_linear b = to_b(l, m, dw, db);
    WN_TRY(wn_op_linear_forward(&l->exec, &b));
    WN_TRY(lora_scaled(l, m->rows * l->rank, l->scale, db, db));
  }
  return WN_OK;
}

wn_status wn_lora_merge(struct wn_lora *l) {
  for (int i = 0; i < l->count; i++) {
    const struct wn_lora_map *m = &l->maps[i];
    WN_TRY(l->exec.backend->memory->copy(l->exec.ctx, weight(l, m), m->base,
                                         (size_t)(m->rows * m->columns) * wn_dtype_size(l->exec.dtype)));
    WN_TRY(scale_b(l, m));
    const struct wn_linear w = to_w(l, m);
    WN_TRY(wn_op_linear_backward(&l->exec, &w));
  }
  return WN_OK;
}
