/* What is collected while a context is read: the queries of the last rows, the mean and the covariance of all queries
 * before rotation, and attention without a causal mask within chunks.
 *
 *   mean[h] = sum of q / T,  covariance[h] = sum of q q^T / T - mean mean^T, over all rows but the first `sinks`
 *
 * Chunks (Compactor): rows from `sinks` on, but the last `recent`, in chunks of c; each row attends to its chunk's
 * keys, later ones included, without a factor on the logits; a token's number is the sum over the chunk's rows, the
 * mean over the heads of a group. Which rows are the last is known at the end, so the rows of a chunk wait until
 * `recent` more have come.
 *
 * Sums are in double. Memory: w H D floats for the window, H D^2 doubles for the covariance, (c + recent) (H + Hkv) D
 * floats for chunks. Cost of a row: H D^2 / 2 products for the covariance, c H D for chunks. */
#include <string.h>

#include "base/arrays.h"
#include "kv/once/score.h"

enum { SEEN_BLOCK = 64 }; /* rows whose queries are rotated back together */

struct wn_once_seen {
  const struct wn_once_method *method;
  const struct wn_once_options *options;
  struct wn_once_shape shape;
  int64_t rows, sinks;         /* of the window; that do not count */
  int64_t seen, counted;       /* rows so far; those in sum and outer */
  int64_t window_held, queued; /* rows in window, and in wait_q and wait_k */
  int64_t columned;            /* tokens that have their column sums */
  float *window;               /* [rows,H,D] */
  double *plain;               /* [H,SEEN_BLOCK,D] */
  double *sum, *outer;         /* [H,D], [H,D,D] */
  double *mean, *covariance;   /* the same, as shown */
  float *wait_q, *wait_k;      /* [chunk+recent,H,D], [chunk+recent,Hkv,D] */
  double *logits;              /* [Hkv,chunk] */
  double *columns, *chunks;    /* [Hkv,capacity]; [Hkv,n] as shown */
  struct wn_arrays arrays;
};

static bool seen_needs(const struct wn_once_seen *s, unsigned need) {
  return (s->method->needs & need) != 0;
}

static void seen_lay(struct wn_once_seen *s, struct wn_arrays *arrays) {
  const struct wn_once_shape *a = &s->shape;
  const int64_t H = a->H, D = a->D, wait = s->options->compactor.chunk + s->options->compactor.recent;
  const bool queries = seen_needs(s, WN_ONCE_QUERIES), chunks = seen_needs(s, WN_ONCE_CHUNKS);
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(s->window, "queries of the last rows", seen_needs(s, WN_ONCE_WINDOW), WN_DIMS(s->rows, H, D)),
      WN_ARRAY_FOR(s->plain, "queries", queries, WN_DIMS(H, SEEN_BLOCK, D)),
      WN_ARRAY_FOR(s->sum, "sum of queries", queries, WN_DIMS(H, D)),
      WN_ARRAY_FOR(s->outer, "products of queries", queries, WN_DIMS(H, D, D)),
      WN_ARRAY_FOR(s->mean, "mean of queries", queries, WN_DIMS(H, D)),
      WN_ARRAY_FOR(s->covariance, "covariance of queries", queries, WN_DIMS(H, D, D)),
      WN_ARRAY_FOR(s->wait_q, "queries of a chunk", chunks, WN_DIMS(wait, H, D)),
      WN_ARRAY_FOR(s->wait_k, "keys of a chunk", chunks, WN_DIMS(wait, a->Hkv, D)),
      WN_ARRAY_FOR(s->logits, "logits of a chunk", chunks, WN_DIMS(a->Hkv, s->options->compactor.chunk)),
      WN_ARRAY_FOR(s->columns, "sums of chunks", chunks, WN_DIMS(a->Hkv, a->capacity)),
      WN_ARRAY_FOR(s->chunks, "sums of chunks", chunks, WN_DIMS(a->Hkv, a->capacity)),
  };
  WN_ARRAYS_LAY(arrays, rows);
}

wn_status wn_once_seen_create(wn_context *ctx, const struct wn_once_method *method,
                              const struct wn_once_options *options, const struct wn_once_shape *shape,
                              struct wn_once_seen **out) {
  *out = NULL;
  if (!(method->needs & (WN_ONCE_WINDOW | WN_ONCE_QUERIES | WN_ONCE_CHUNKS))) return WN_OK;
  void *memory;
  WN_TRY(wn_alloc(ctx, "what a method collects", sizeof(struct wn_once_seen), &memory));
  struct wn_once_seen *s = memory;
  s->method = method;
  s->options = options;
  s->shape = *shape;
  s->rows = method->rows ? method->rows(options) : 0;
  s->sinks = method->sinks ? method->sinks(options) : 0;
  struct wn_arrays arrays = {0};
  seen_lay(s, &arrays);
  const wn_status status = wn_arrays_allocate(ctx, &arrays, "what a method collects");
  if (status != WN_OK) {
    wn_free(s);
    return status;
  }
  s->arrays = arrays;
  seen_lay(s, &arrays);
  *out = s;
  return WN_OK;
}

void wn_once_seen_destroy(struct wn_once_seen *s) {
  if (!s) return;
  wn_arrays_clear(&s->arrays);
  wn_free(s);
}

void wn_once_seen_reset(struct wn_once_seen *s) {
  const int64_t H = s->shape.H, D = s->shape.D;
  s->seen = s->counted = s->window_held = s->queued = s->columned = 0;
  if (s->sum) memset(s->sum, 0, (size_t)(H * D) * sizeof *s->sum);
  if (s->outer) memset(s->outer, 0, (size_t)(H * D * D) * sizeof *s->outer);
}

wn_status wn_once_seen_copy(wn_context *ctx, struct wn_once_seen *to, const struct wn_once_seen *from) {
  const int64_t H = from->shape.H, Hkv = from->shape.Hkv, D = from->shape.D;
  const struct {
    void *to;
    const void *from;
    size_t bytes;
  } all[] = {
      {to->window, from->window, (size_t)(from->window_held * H * D) * sizeof *to->window},
      {to->sum, from->sum, (size_t)(H * D) * sizeof *to->sum},
      {to->outer, from->outer, (size_t)(H * D * D) * sizeof *to->outer},
      {to->wait_q, from->wait_q, (size_t)(from->queued * H * D) * sizeof *to->wait_q},
      {to->wait_k, from->wait_k, (size_t)(from->queued * Hkv * D) * sizeof *to->wait_k},
  };
  if (from->columns && from->seen > to->shape.capacity)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "method %s: expected a context of at most %lld tokens, found %lld",
                   to->method->name, (long long)to->shape.capacity, (long long)from->seen);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].to && all[i].bytes) memcpy(all[i].to, all[i].from, all[i].bytes);
  for (int64_t g = 0; from->columns && g < Hkv; g++)
    memcpy(to->columns + g * to->shape.capacity, from->columns + g * from->shape.capacity,
           (size_t)from->columned * sizeof *to->columns);
  to->seen = from->seen, to->counted = from->counted;
  to->window_held = from->window_held, to->queued = from->queued, to->columned = from->columned;
  return WN_OK;
}

/* The last rows of what the window holds and q. */
static void seen_window(struct wn_once_seen *s, const float *q, int64_t T) {
  const int64_t row = s->shape.H * s->shape.D, fresh = T < s->rows ? T : s->rows;
  const int64_t stay = s->window_held + fresh > s->rows ? s->rows - fresh : s->window_held;
  memmove(s->window, s->window + (s->window_held - stay) * row, (size_t)(stay * row) * sizeof *q);
  memcpy(s->window + stay * row, q + (T - fresh) * row, (size_t)(fresh * row) * sizeof *q);
  s->window_held = stay + fresh;
}

/* What the heads' sums are made of. */
struct seen_part {
  struct wn_once_seen *s;
  int64_t T;   /* rows; for columns, those that wait */
  double *out; /* [Hkv,ld] */
  int64_t ld;
};

/* Of products the lower half is summed. */
WN_WIDE static void seen_sum(void *args, int64_t h) {
  const struct seen_part *part = args;
  struct wn_once_seen *s = part->s;
  const int64_t D = s->shape.D;
  double *sum = s->sum + h * D, *outer = s->outer + h * D * D;
  for (int64_t t = 0; t < part->T; t++) {
    const double *x = s->plain + (h * part->T + t) * D;
    for (int64_t i = 0; i < D; i++) {
      sum[i] += x[i];
      for (int64_t j = 0; j <= i; j++) outer[i * D + j] += x[i] * x[j];
    }
  }
}

/* Adds at most SEEN_BLOCK rows to the sums. */
static void seen_queries(struct wn_once_seen *s, const float *q, const int32_t *at, int64_t T) {
  const int64_t H = s->shape.H, D = s->shape.D;
  const struct wn_once_rows rows = {q, T, H, D, H * D, D, at, s->shape.rope, s->plain};
  wn_once_unrotate(s->shape.threads, &rows);
  wn_parallel_for(s->shape.threads, H, seen_sum, &(struct seen_part){.s = s, .T = T});
  s->counted += T;
}

WN_WIDE static void seen_column_sums(void *args, int64_t g) {
  const struct seen_part *part = args;
  const struct wn_once_seen *s = part->s;
  const int64_t H = s->shape.H, Hkv = s->shape.Hkv, D = s->shape.D, group = H / Hkv, m = part->T;
  const int64_t chunk = s->options->compactor.chunk, width = s->options->compactor.padded ? chunk : m;
  double *out = part->out + g * part->ld, *row = s->logits + g * chunk;
  const double empty = (double)(width - m) / (double)width; /* rows of zeros attend to all columns alike */
  for (int64_t j = 0; j < m; j++) out[j] = empty;
  for (int64_t h = g * group; h < (g + 1) * group; h++)
    for (int64_t t = 0; t < m; t++) {
      memset(row, 0, (size_t)width * sizeof *row);
      for (int64_t j = 0; j < m; j++)
        row[j] = wn_once_dot(s->wait_q + (t * H + h) * D, s->wait_k + (j * Hkv + g) * D, D);
      wn_once_softmax(row, width);
      for (int64_t j = 0; j < m; j++) out[j] += row[j] / (double)group;
    }
}

/* The column sums of the first m rows that wait, to out [Hkv] rows of `ld` numbers. */
static void seen_columns(struct wn_once_seen *s, int64_t m, double *out, int64_t ld) {
  wn_parallel_tasks(s->shape.threads, s->shape.Hkv, seen_column_sums, &(struct seen_part){s, m, out, ld});
}

static void seen_chunks(struct wn_once_seen *s, const float *q, const float *k, int64_t T) {
  const int64_t q_row = s->shape.H * s->shape.D, k_row = s->shape.Hkv * s->shape.D;
  const int64_t chunk = s->options->compactor.chunk, recent = s->options->compactor.recent;
  while (T > 0) {
    const int64_t room = chunk + recent - s->queued, take = T < room ? T : room;
    memcpy(s->wait_q + s->queued * q_row, q, (size_t)(take * q_row) * sizeof *q);
    memcpy(s->wait_k + s->queued * k_row, k, (size_t)(take * k_row) * sizeof *k);
    q += take * q_row, k += take * k_row, T -= take;
    s->queued += take;
    if (s->queued < chunk + recent) return;
    seen_columns(s, chunk, s->columns + s->columned, s->shape.capacity);
    s->columned += chunk;
    s->queued = recent;
    memmove(s->wait_q, s->wait_q + chunk * q_row, (size_t)(recent * q_row) * sizeof *q);
    memmove(s->wait_k, s->wait_k + chunk * k_row, (size_t)(recent * k_row) * sizeof *k);
  }
}

wn_status wn_once_seen_rows(wn_context *ctx, struct wn_once_seen *s, const float *q, const float *k, const int32_t *at,
                            int64_t T) {
  const int64_t q_row = s->shape.H * s->shape.D, k_row = s->shape.Hkv * s->shape.D;
  if (T > s->shape.capacity - s->seen && seen_needs(s, WN_ONCE_CHUNKS))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "method %s: expected a context of at most %lld tokens, found more",
                   s->method->name, (long long)s->shape.capacity);
  if (seen_needs(s, WN_ONCE_WINDOW)) seen_window(s, q, T);
  const int64_t left = s->seen < s->sinks ? s->sinks - s->seen : 0, skip = left < T ? left : T;
  s->seen += T;
  q += skip * q_row, k = k ? k + skip * k_row : NULL, at += skip, T -= skip;
  if (seen_needs(s, WN_ONCE_CHUNKS)) seen_chunks(s, q, k, T);
  for (int64_t t = 0; t < T && seen_needs(s, WN_ONCE_QUERIES); t += SEEN_BLOCK)
    seen_queries(s, q + t * q_row, at + t, T - t < SEEN_BLOCK ? T - t : SEEN_BLOCK);
  return WN_OK;
}

static void seen_show_queries(struct wn_once_seen *s) {
  const int64_t H = s->shape.H, D = s->shape.D;
  const double count = s->counted > 0 ? (double)s->counted : 1;
  for (int64_t h = 0; h < H; h++) {
    const double *outer = s->outer + h * D * D;
    double *mean = s->mean + h * D, *covariance = s->covariance + h * D * D;
    for (int64_t i = 0; i < D; i++) mean[i] = s->sum[h * D + i] / count;
    for (int64_t i = 0; i < D; i++)
      for (int64_t j = 0; j <= i; j++)
        covariance[i * D + j] = covariance[j * D + i] = outer[i * D + j] / count - mean[i] * mean[j];
  }
}

static void seen_show_chunks(struct wn_once_seen *s, int64_t n) {
  const int64_t rest = s->queued - s->options->compactor.recent;
  memset(s->chunks, 0, (size_t)(s->shape.Hkv * n) * sizeof *s->chunks);
  for (int64_t g = 0; g < s->shape.Hkv; g++)
    memcpy(s->chunks + g * n + s->sinks, s->columns + g * s->shape.capacity, (size_t)s->columned * sizeof *s->chunks);
  if (rest > 0) seen_columns(s, rest, s->chunks + s->sinks + s->columned, n);
}

wn_status wn_once_seen_show(wn_context *ctx, struct wn_once_seen *s, struct wn_once_view *view) {
  if (seen_needs(s, WN_ONCE_WINDOW)) view->q = s->window, view->w = s->window_held;
  if (seen_needs(s, WN_ONCE_QUERIES)) {
    seen_show_queries(s);
    view->mean = s->mean, view->covariance = s->covariance;
  }
  if (!seen_needs(s, WN_ONCE_CHUNKS)) return WN_OK;
  if (view->n != s->seen)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "method %s: expected the %lld tokens of the whole context, found %lld",
                   s->method->name, (long long)s->seen, (long long)view->n);
  seen_show_chunks(s, view->n);
  view->chunks = s->chunks;
  return WN_OK;
}
