/* Data-parallel training. A step's batch is cut into `parts` equal parts. Each process computes some of them, one after
 * another, and the parts' gradients are summed in a fixed tree (dist.h). A process has a whole branch of the tree, so
 * it exchanges only one array. Because the tree does not depend on the number of processes, 1, 2 and 4 of them give the
 * same bits.
 *
 * A bucket is a group of tensors whose gradients are complete at the same time in backward. Every process owns a share
 * of each bucket: it receives the others' sums of these elements, adds them in the tree's order, updates the parameters
 * with its share of the optimizer's state, and sends the new parameters to all (ZeRO stage 1). With N processes each
 * sends and receives 2 (N-1)/N times 4 bytes per parameter and step. Buckets are sent while backward goes on with the
 * layers below.
 *
 * Memory of a process beside the model: 1 + log2(its parts) arrays of gradients, (N-1)/N of one for what it receives,
 * and 1/N of the optimizer's state. */
#include "train/shards.h"

#include <stdlib.h>

#include "base/clock.h"
#include "dist/dist.h"

enum { SHARDS_PIECE = 1 << 16, SHARDS_MESSAGE = 1 << 22 }; /* elements */

wn_status wn_shards_plan(wn_context *ctx, const wn_train_config *config, struct wn_shards *s) {
  memset(s, 0, sizeof *s);
  const int64_t rows = config->batch * config->accumulate;
  s->ctx = ctx;
  s->rank = wn_dist_rank(ctx);
  s->size = wn_dist_size(ctx);
  s->parts = config->shards > 0 ? config->shards : s->size;
  if (s->parts > rows || rows % s->parts)
    return wn_fail(ctx, WN_ERR_CONFIG,
                   "train.shards is %lld%s; it must divide the step's rows, train.batch * train.accumulate, %lld",
                   (long long)s->parts, s->size > 1 && s->parts == s->size ? " (by default the processes)" : "",
                   (long long)rows);
  if (s->size > s->parts)
    return wn_fail(ctx, WN_ERR_CONFIG, "%d processes for a batch of %lld parts (train.shards): there is work for %lld",
                   s->size, (long long)s->parts, (long long)s->parts);
  const int64_t each = rows / s->parts;
  s->rows = each < config->batch ? each : config->batch;
  while (each % s->rows) s->rows--;
  s->micro_steps = rows / s->rows;
  wn_dist_branch(s->parts, s->rank, s->size, &s->first, &s->count);
  return WN_OK;
}

/* Bucket 0 is complete before the layers' backward; then follows one bucket per layer, the last layer first; the last
 * bucket is complete at the end. Gradients of low-rank updates are all computed after backward. */
wn_status wn_shards_share(struct wn_shards *s, const struct wn_model *model, const struct wn_adapt_rows *learns,
                          struct wn_optimizer_share *share) {
  const int64_t L = model->config.layers;
  const char *overlap = getenv("WINNOW_OVERLAP");
  s->model = model;
  s->learns = learns;
  s->element = wn_dtype_size(model->dtype);
  s->gradients = learns->gradients;
  s->buckets = (int)L + 2;
  s->overlap = s->size > 1 && !learns->has_lora && !(overlap && !strcmp(overlap, "0"));
  WN_TRY(WN_ALLOC(s->ctx, "buckets of gradients", learns->count + model->table.count, &s->bucket));
  s->whole = s->bucket + learns->count;
  for (int row = 0; row < model->table.count; row++) s->whole[row] = (int)wn_model_whole_after(model, row);
  for (int i = 0; i < learns->count; i++) s->bucket[i] = s->buckets - 1;
  for (int row = 0, i = 0; row < model->table.count && !learns->has_lora; row++) { /* only rows that learn, in order */
    if (learns->grad_at[row] == WN_NO_GRADIENT) continue;
    if (s->whole[row] >= 0) s->bucket[i] = (int)L - s->whole[row];
    i++;
  }
  *share = (struct wn_optimizer_share){
      .rank = s->rank, .size = s->size, .most = s->parts > 1 ? SHARDS_PIECE : SIZE_MAX, .bucket = s->bucket};
  return WN_OK;
}

static const struct wn_memory *shards_memory(const struct wn_shards *s) {
  return s->model->backend->memory;
}

static char *shards_at(const struct wn_shards *s, const void *array, size_t element) {
  return (char *)(uintptr_t)array + element * s->element;
}

/* Joins neighbouring pieces of one owner into spans; padding of a tensor may lie between them. out NULL: only
 * counts. */
static int shards_spans(const struct wn_shards *s, bool params, struct wn_shard_span *out) {
  struct wn_shard_span span = {.bucket = -1};
  int n = 0;
  for (int k = 0; k < s->opt->piece_count; k++) {
    const struct wn_optimizer_piece *piece = &s->opt->pieces[k];
    const struct wn_optimizer_row *row = &s->opt->rows[piece->row];
    const size_t at = row->grad_at + piece->first;
    char *p = shards_at(s, row->p, piece->first);
    const int bucket = params ? 0 : s->bucket[piece->row];
    const char *end = params && span.p ? shards_at(s, span.p, span.count) : NULL;
    const bool follows = params ? end && p >= end && (size_t)(p - end) <= 15 * s->element
                                : at >= span.at + span.count && at - (span.at + span.count) <= 15;
    const size_t whole =
        params && end ? (size_t)(p - (const char *)span.p) / s->element + piece->count : at + piece->count - span.at;
    if (n > 0 && follows && span.bucket == bucket && span.owner == piece->owner && whole <= SHARDS_MESSAGE) {
      span.count = whole;
    } else {
      span = (struct wn_shard_span){.bucket = bucket, .owner = piece->owner, .at = at, .count = piece->count, .p = p};
      n++;
    }
    if (out) out[n - 1] = span;
  }
  return n;
}

wn_status wn_shards_open(struct wn_shards *s, struct wn_optimizer *opt, uint8_t *begun) {
  int owned = 0;
  s->opt = opt;
  s->begun = begun;
  s->levels = 1;
  for (int64_t i = 0; i < s->count; i++) {
    const int waiting = __builtin_popcountll((unsigned long long)i);
    if (waiting + 1 > s->levels) s->levels = waiting + 1;
  }
  if (s->size > 1) {
    WN_TRY(wn_dist_connect(s->ctx, shards_memory(s)));
    s->span_count = shards_spans(s, false, NULL);
    s->param_count = shards_spans(s, true, NULL);
    WN_TRY(WN_ALLOC(s->ctx, "messages", s->span_count + s->param_count, &s->spans));
    s->params = s->spans + s->span_count;
    shards_spans(s, false, s->spans);
    shards_spans(s, true, s->params);
    for (int i = 0; i < s->span_count; i++) {
      if (s->spans[i].owner != s->rank) continue;
      s->spans[i].in = s->in_count;
      s->in_count += (s->spans[i].count + 15) & ~(size_t)15;
      owned++;
    }
    const int gradient = s->span_count + owned * (s->size - 2), all = s->param_count * (s->size - 1);
    s->request_count = gradient > all ? gradient : all;
  }
  const size_t element = s->element;
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(s->requests, "requests", s->size > 1, WN_DIMS(s->request_count)),
      WN_ARRAY_FOR(s->posted, "buckets sent", true, WN_DIMS(s->buckets)),
  };
  struct wn_array levels[WN_SHARDS_LEVELS + 1];
  for (int i = 0; i < s->levels; i++)
    levels[i] = (struct wn_array)WN_ARRAY_SIZED(s->sum[i], element, i ? "gradients of parts" : "gradients", true,
                                                WN_DIMS((int64_t)s->gradients));
  levels[s->levels] = (struct wn_array)WN_ARRAY_SIZED(s->in, element, "gradients of other processes", s->size > 1,
                                                      WN_DIMS(s->size - 1, (int64_t)s->in_count));
  WN_TRY(WN_ARRAYS_CREATE(s->ctx, &s->arrays, "gradients", rows));
  return wn_arrays_create_in(s->ctx, shards_memory(s), &s->sums, "gradients", levels, (size_t)s->levels + 1);
}

void wn_shards_clear(struct wn_shards *s) {
  wn_arrays_clear(&s->arrays);
  wn_arrays_clear(&s->sums);
  wn_free(s->spans);
  wn_free(s->bucket);
  memset(s, 0, sizeof *s);
}

/* y [n] += x [n] */
static wn_status shards_sum(const struct wn_shards *s, size_t n, const void *x, void *y) {
  return wn_op_add_forward(&s->opt->exec, &(struct wn_add){.n = (int64_t)n, .x = y, .z = x, .y = y});
}

void *wn_shards_begin(struct wn_shards *s, int64_t i) {
  if (i == 0) {
    s->top = s->under_way = 0;
    s->status = WN_OK;
    s->waited = 0;
    memset(s->posted, 0, (size_t)s->buckets * sizeof *s->posted);
  }
  return s->sum[s->top];
}

/* Like counting in binary: two sums of equally many parts become one. */
wn_status wn_shards_add(struct wn_shards *s, int64_t i) {
  for (int64_t n = i + 1; n % 2 == 0; n /= 2) {
    WN_TRY(shards_sum(s, s->gradients, s->sum[s->top], s->sum[s->top - 1]));
    s->top--;
  }
  s->top++;
  return WN_OK;
}

/* A process's sum of a span: this process's own, or what the other one has sent. */
static void *shards_of(const struct wn_shards *s, const struct wn_shard_span *span, int rank) {
  if (rank == s->rank) return shards_at(s, s->sum[0], span->at);
  const int place = rank < s->rank ? rank : rank - 1;
  return shards_at(s, s->in, (size_t)place * s->in_count + span->in);
}

/* The sum of the branch of the next `n` parts. *rank: the first process that has some of them; moved on past those that
 * have. */
static wn_status shards_branch(const struct wn_shards *s, const struct wn_shard_span *span, int64_t n, int *rank,
                               void **out) {
  int64_t first, count;
  wn_dist_branch(s->parts, *rank, s->size, &first, &count);
  if (count == n) {
    *out = shards_of(s, span, (*rank)++);
    return WN_OK;
  }
  const int64_t left = wn_dist_left(n);
  void *b;
  WN_TRY(shards_branch(s, span, left, rank, out));
  WN_TRY(shards_branch(s, span, n - left, rank, &b));
  return shards_sum(s, span->count, b, *out);
}

static wn_status shards_post(struct wn_shards *s, int bucket) {
  s->posted[bucket] = true;
  for (int i = 0; i < s->span_count; i++) {
    const struct wn_shard_span *span = &s->spans[i];
    if (span->bucket != bucket) continue;
    const size_t bytes = span->count * s->element;
    for (int level = s->top; level > 0; level--)
      WN_TRY(
          shards_sum(s, span->count, shards_at(s, s->sum[level], span->at), shards_at(s, s->sum[level - 1], span->at)));
    void *own = shards_of(s, span, s->rank);
    if (span->owner != s->rank) {
      WN_TRY(wn_dist_send(s->ctx, shards_memory(s), own, bytes, span->owner, &s->requests[s->under_way++]));
      continue;
    }
    for (int r = 0; r < s->size; r++)
      if (r != s->rank)
        WN_TRY(
            wn_dist_receive(s->ctx, shards_memory(s), shards_of(s, span, r), bytes, r, &s->requests[s->under_way++]));
  }
  return wn_dist_advance(s->ctx, s->requests, (size_t)s->under_way);
}

void wn_shards_layer(void *shards, int64_t l) {
  struct wn_shards *s = shards;
  const int bucket = (int)(s->model->config.layers - l);
  if (s->status != WN_OK) return;
  for (int row = 0; row < s->model->table.count;
       row++) { /* a gradient to which nothing was added is still uninitialised; it counts as zeros */
    if (s->begun[row] || s->learns->grad_at[row] == WN_NO_GRADIENT) continue;
    if (s->whole[row] != l) continue;
    s->status = shards_memory(s)->zero(s->ctx, shards_at(s, s->sum[s->top], s->learns->grad_at[row]),
                                       s->model->table.rows[row].count * s->element);
    if (s->status != WN_OK) return;
    s->begun[row] = 1;
  }
  s->status = shards_post(s, bucket);
}

wn_status wn_shards_finish(struct wn_shards *s) {
  WN_TRY(s->status);
  if (s->size == 1) {
    for (; s->top > 0; s->top--) WN_TRY(shards_sum(s, s->gradients, s->sum[s->top], s->sum[s->top - 1]));
    return WN_OK;
  }
  const double start = wn_seconds_now();
  for (int b = 0; b < s->buckets; b++)
    if (!s->posted[b]) WN_TRY(shards_post(s, b));
  WN_TRY(wn_dist_wait(s->ctx, s->requests, (size_t)s->under_way));
  for (int i = 0; i < s->span_count; i++) {
    const struct wn_shard_span *span = &s->spans[i];
    int rank = 0;
    if (span->owner != s->rank) continue;
    void *whole, *own = shards_of(s, span, s->rank);
    WN_TRY(shards_branch(s, span, s->parts, &rank, &whole));
    if (whole != own) WN_TRY(shards_memory(s)->copy(s->ctx, own, whole, span->count * s->element));
  }
  s->waited += wn_seconds_now() - start;
  return WN_OK;
}

wn_status wn_shards_gather(struct wn_shards *s) {
  if (s->size == 1) return WN_OK;
  const double start = wn_seconds_now();
  s->under_way = 0;
  for (int i = 0; i < s->param_count; i++) {
    const struct wn_shard_span *span = &s->params[i];
    const size_t bytes = span->count * s->element;
    if (span->owner != s->rank) {
      WN_TRY(wn_dist_receive(s->ctx, shards_memory(s), span->p, bytes, span->owner, &s->requests[s->under_way++]));
      continue;
    }
    for (int k = 1; k < s->size; k++)
      WN_TRY(wn_dist_send(s->ctx, shards_memory(s), span->p, bytes, (s->rank + k) % s->size,
                          &s->requests[s->under_way++]));
  }
  WN_TRY(wn_dist_wait(s->ctx, s->requests, (size_t)s->under_way));
  s->waited += wn_seconds_now() - start;
  return WN_OK;
}
