/* Scoring questions: their order, their batches, and what is computed only once.
 *
 * The requests of a question share a beginning, usually its whole context. The beginning is read once, and a fork of
 * the session (wn_session_copy) reads the rest ("tail") of each request. Questions whose beginnings have the same
 * length form a batch, large enough for an efficient product. A request's last token is never read, since the row
 * before it scores it. So a question of n choices costs one pass over its context and n over short tails. Tails that
 * are read together are padded at their ends to the longest, which does not change what comes before. A batch's tails
 * are sorted by length and divided into passes so that padding and passes together cost least.
 *
 * Several processes take the batches in turn and exchange the scores after each round.
 *
 * A session whose budgets reach its capacity has the same bits as one without budgets. So questions that fit into the
 * budgets are batched apart from those that do not, and sessions under budgets have exactly the capacity that is
 * needed. */
#include <stdlib.h>

#include "base/arrays.h"
#include "dist/dist.h"
#include "eval/run.h"
#include "kv/budgets.h"
#include "winnow/score.h"

enum {
  BATCH = 512,
  FORK_TOKENS = 4096, /* the most tokens that the forks' caches hold together, unless one question needs more */
  PASS = 64,          /* one more pass costs about as much as so many rows, because it reads the weights again */
  KEPT =
      4, /* sessions of each kind that are kept: batches of similar lengths have few different numbers of sequences */
  CAPACITY_STEP = 64 /* capacities are rounded up to it, so that similar lengths find a session that fits */
};

/* A batch: questions order[first..first+count) with the same `common` and number of requests. */
struct batch {
  const int64_t *order;
  int64_t count, common, longest;
  int ways; /* requests per question */
};

/* Sessions are kept while they fit: making one costs about as much as reading 30 tokens. */
struct kept_session {
  wn_session *s;
  int64_t sequences, capacity;
  uint64_t used; /* when it was last used, by a count of uses */
};
struct kept_sessions {
  struct kept_session all[KEPT];
  uint64_t uses;
};

/* The tail of a request: what follows the common tokens. */
struct tail {
  struct wn_asked_request *r;
  int64_t n, source; /* tokens to read; the question's place in its batch */
};
/* The cheapest division of the tails from this one on. */
struct division {
  int64_t cost, count; /* cost in rows; how many tails its first pass takes */
};

struct evaluation {
  wn_context *ctx;
  wn_model *model;
  const wn_task_options *o;
  struct wn_questions *q;
  const struct wn_eval_log *log;
  wn_task_result *r;
  int64_t context; /* the evaluation's; no session needs more */
  int64_t least;   /* rows that every budget holds: shorter questions evict nothing and form batches of their own */
  struct kept_sessions heads, tails; /* with `count` and with `count * ways` sequences */
  wn_session *head, *forks;          /* the current batch's */
  struct wn_arrays arrays;
  int64_t room; /* size of the arrays, in rows */
  int32_t *tokens, *targets;
  double *sums;
  uint8_t *greedy;
  struct tail *tail;
  struct division *division;
  int64_t *sources;
  double *told; /* [2 requests + 1] with several processes: a round's scores, and whether it is the last round */
};

/* --- sessions and arrays that are kept while they fit --- */

static void kept_clear(struct kept_sessions *kept) {
  for (int i = 0; i < KEPT; i++) wn_session_destroy(kept->all[i].s);
  *kept = (struct kept_sessions){0};
}

/* An empty session of so many sequences for at least `tokens` tokens each: a kept one, or a new one that replaces the
 * least recently used. */
static wn_status evaluation_session(struct evaluation *e, int64_t sequences, int64_t tokens, struct kept_sessions *kept,
                                    wn_session **out) {
  struct kept_session *place = &kept->all[0];
  int64_t capacity = (tokens + CAPACITY_STEP - 1) / CAPACITY_STEP * CAPACITY_STEP;
  if (capacity > e->context || e->o->budgets)
    capacity = tokens; /* a budget that reaches the capacity counts as none, so the capacity must be exact */
  for (int i = 0; i < KEPT; i++) {
    struct kept_session *k = &kept->all[i];
    if (k->s && k->sequences == sequences && k->capacity == capacity) {
      wn_session_reset(k->s);
      k->used = ++kept->uses;
      *out = k->s;
      return WN_OK;
    }
    if (k->used < place->used) place = k;
  }
  const wn_budgets *budgets = e->o->budgets;
  if (budgets && budgets->when != WN_WHEN_EVERY) WN_TRY(wn_budgets_check_rows(e->ctx, budgets));
  wn_session_destroy(place->s);
  *place = (struct kept_session){.sequences = sequences, .capacity = capacity, .used = ++kept->uses};
  const wn_session_options options = {.size = sizeof options,
                                      .sequences = sequences,
                                      .capacity = capacity,
                                      .budgets = e->o->budgets,
                                      .cache = e->o->cache};
  const wn_status status = wn_session_create(e->ctx, e->model, &options, &place->s);
  if (status != WN_OK) {
    *place = (struct kept_session){0};
    return status;
  }
  *out = place->s;
  const uint64_t bytes = wn_session_kv_bytes(place->s) / (uint64_t)sequences;
  if (bytes > e->r->cache_bytes) e->r->cache_bytes = bytes;
  return WN_OK;
}

static wn_status evaluation_room(struct evaluation *e, int64_t rows) {
  if (rows <= e->room) return WN_OK;
  const struct wn_array arrays[] = {
      WN_ARRAY_FOR(e->tokens, "tokens", true, WN_DIMS(rows)),
      WN_ARRAY_FOR(e->targets, "targets", true, WN_DIMS(rows)),
      WN_ARRAY_FOR(e->sums, "scores", true, WN_DIMS(rows)),
      WN_ARRAY_FOR(e->greedy, "greedy", true, WN_DIMS(rows)),
      WN_ARRAY_FOR(e->tail, "tails", true, WN_DIMS(rows)),
      WN_ARRAY_FOR(e->division, "divisions", true, WN_DIMS(rows + 1)),
      WN_ARRAY_FOR(e->sources, "sources", true, WN_DIMS(rows)),
  };
  wn_arrays_clear(&e->arrays);
  e->arrays = (struct wn_arrays){0};
  e->room = 0;
  WN_TRY(WN_ARRAYS_CREATE(e->ctx, &e->arrays, "scores of questions", arrays));
  e->room = rows;
  return WN_OK;
}

static wn_scores evaluation_scores(const struct evaluation *e) {
  return (wn_scores){.size = sizeof(wn_scores), .log_probability = e->sums, .greedy = e->greedy};
}

/* --- a batch --- */

static struct wn_asked_request *batch_request(const struct evaluation *e, const struct batch *b, int64_t i, int way) {
  return &e->q->requests[e->q->all[b->order[i]].first + (size_t)way];
}

static void request_take(struct wn_asked_request *r, double log_probability, bool greedy) {
  r->log_probability += log_probability;
  r->greedy = r->greedy && greedy;
}

/* Reads the common tokens of every question, and scores those that already belong to a continuation. */
static wn_status batch_read_common(struct evaluation *e, const struct batch *b) {
  const int64_t N = b->common;
  const wn_scores scores = evaluation_scores(e);
  for (int64_t i = 0; i < b->count; i++) {
    const int32_t *ids = e->q->ids.data + batch_request(e, b, i, 0)->at;
    int64_t context = batch_request(e, b, i, 0)->context;
    for (int way = 1; way < b->ways; way++)
      if (batch_request(e, b, i, way)->context < context) context = batch_request(e, b, i, way)->context;
    for (int64_t t = 0; t < N; t++) {
      e->tokens[i * N + t] = ids[t];
      e->targets[i * N + t] = t + 1 < N && t + 1 >= context ? ids[t + 1] : -1;
    }
  }
  WN_TRY(wn_session_score(e->ctx, e->head, e->tokens, e->targets, N, &scores));
  e->r->tokens_fed += (uint64_t)(b->count * N);
  for (int64_t i = 0; i < b->count; i++)
    for (int way = 0; way < b->ways; way++) {
      struct wn_asked_request *r = batch_request(e, b, i, way);
      for (int64_t t = r->context; t < N; t++) request_take(r, e->sums[i * N + t - 1], e->greedy[i * N + t - 1]);
    }
  return WN_OK;
}

/* Scores the first token after the common ones, if it belongs to the continuation. */
static wn_status batch_score_first(struct evaluation *e, const struct batch *b) {
  const wn_scores scores = evaluation_scores(e);
  bool any = false;
  for (int64_t i = 0; i < b->count; i++)
    for (int way = 0; way < b->ways; way++) {
      const struct wn_asked_request *r = batch_request(e, b, i, way);
      const bool counts = r->context <= b->common;
      e->targets[i * b->ways + way] = counts ? e->q->ids.data[r->at + (size_t)b->common] : -1;
      any = any || counts;
    }
  if (!any) return WN_OK;
  WN_TRY(wn_session_score_next(e->ctx, e->head, e->targets, b->ways, &scores));
  for (int64_t i = 0; i < b->count; i++)
    for (int way = 0; way < b->ways; way++)
      if (e->targets[i * b->ways + way] >= 0)
        request_take(batch_request(e, b, i, way), e->sums[i * b->ways + way], e->greedy[i * b->ways + way]);
  return WN_OK;
}

static int tail_compare(const void *a, const void *b) { /* longest first */
  const struct tail *x = a, *y = b;
  return x->n != y->n ? (x->n < y->n ? 1 : -1) : x->r < y->r ? -1 : x->r > y->r;
}

static int64_t evaluation_tokens(const struct evaluation *e) {
  return e->o->batch > 0 ? e->o->batch : BATCH;
}

/* Divides `count` tails, longest first, into passes, by dynamic programming from the end. */
static void tails_divide(const struct evaluation *e, int64_t count, int64_t common) {
  e->division[count] = (struct division){0};
  for (int64_t i = count - 1; i >= 0; i--) {
    const int64_t n = e->tail[i].n;
    struct division *best = &e->division[i];
    *best = (struct division){.cost = n + PASS + e->division[i + 1].cost, .count = 1};
    for (int64_t m = 2; i + m <= count && m * n <= evaluation_tokens(e) && m * (common + n) <= FORK_TOKENS; m++) {
      const int64_t cost = m * n + PASS + e->division[i + m].cost;
      if (cost < best->cost) *best = (struct division){.cost = cost, .count = m};
    }
  }
}

/* Reads `count` tails, the longest first, by forks of the head session. */
static wn_status tails_read(struct evaluation *e, const struct batch *b, const struct tail *tails, int64_t count) {
  const int64_t N = tails[0].n;
  const wn_scores scores = evaluation_scores(e);
  WN_TRY(evaluation_session(e, count, b->common + b->longest, &e->tails, &e->forks));
  for (int64_t i = 0; i < count; i++) {
    const struct wn_asked_request *r = tails[i].r;
    const int32_t *ids = e->q->ids.data + r->at;
    e->sources[i] = tails[i].source;
    for (int64_t t = 0; t < N; t++) {
      const int64_t at = b->common + t; /* index of the token that is read; the one after it is scored */
      const bool read = t < tails[i].n;
      e->tokens[i * N + t] = read ? ids[at] : ids[r->n - 1];
      e->targets[i * N + t] = read && at + 1 >= r->context ? ids[at + 1] : -1;
    }
    e->r->tokens_fed += (uint64_t)tails[i].n;
  }
  if (b->common > 0) WN_TRY(wn_session_copy(e->ctx, e->forks, e->head, e->sources));
  WN_TRY(wn_session_score(e->ctx, e->forks, e->tokens, e->targets, N, &scores));
  for (int64_t i = 0; i < count; i++)
    for (int64_t row = i * N; row < (i + 1) * N; row++)
      if (e->targets[row] >= 0) request_take(tails[i].r, e->sums[row], e->greedy[row]);
  return WN_OK;
}

/* Reads the tails of all requests. */
static wn_status batch_read_rest(struct evaluation *e, const struct batch *b) {
  int64_t count = 0;
  for (int64_t i = 0; i < b->count; i++)
    for (int way = 0; way < b->ways; way++) {
      struct wn_asked_request *r = batch_request(e, b, i, way);
      if (r->n - 1 > b->common) e->tail[count++] = (struct tail){.r = r, .n = r->n - 1 - b->common, .source = i};
    }
  qsort(e->tail, (size_t)count, sizeof *e->tail, tail_compare);
  tails_divide(e, count, b->common);
  for (int64_t i = 0; i < count; i += e->division[i].count) WN_TRY(tails_read(e, b, e->tail + i, e->division[i].count));
  return WN_OK;
}

static wn_status batch_run(struct evaluation *e, const struct batch *b) {
  int64_t rows = b->count * (b->common > b->ways ? b->common : b->ways);
  if (rows < evaluation_tokens(e)) rows = evaluation_tokens(e);
  WN_TRY(evaluation_room(e, rows > b->longest ? rows : b->longest));
  for (int64_t i = 0; i < b->count; i++)
    for (int way = 0; way < b->ways; way++) {
      struct wn_asked_request *r = batch_request(e, b, i, way);
      r->log_probability = 0;
      r->greedy = true;
      e->r->tokens_scored += (uint64_t)(r->n - r->context);
    }
  if (b->common > 0) {
    WN_TRY(evaluation_session(e, b->count, b->common + b->longest, &e->heads, &e->head));
    WN_TRY(batch_read_common(e, b));
    WN_TRY(batch_score_first(e, b));
  }
  return b->longest > 0 ? batch_read_rest(e, b) : WN_OK;
}

/* --- all questions --- */

static int order_compare(const void *a, const void *b, void *questions) {
  const struct wn_questions *q = questions;
  const int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
  const struct wn_asked *x = &q->all[i], *y = &q->all[j];
  if (x->common != y->common)
    return x->common < y->common ? 1 : -1; /* longest first, so that what does not fit fails early */
  if (x->count != y->count) return x->count < y->count ? 1 : -1;
  if (x->longest != y->longest) return x->longest < y->longest ? 1 : -1;
  return i < j ? -1 : i > j;
}

/* The next batch of the questions that are left. */
static struct batch batch_of(const struct evaluation *e, const int64_t *order, int64_t left) {
  const struct wn_asked *a = &e->q->all[order[0]];
  const int64_t tokens = evaluation_tokens(e), each = a->common + a->longest;
  struct batch b = {.order = order, .count = 1, .common = a->common, .longest = a->longest, .ways = a->count};
  while (b.count < left) {
    const struct wn_asked *next = &e->q->all[order[b.count]];
    if (next->common != a->common || next->count != a->count) break;
    if ((next->rows <= e->least) != (a->rows <= e->least)) break;
    if ((b.count + 1) * (a->common > a->count ? a->common : a->count) > tokens) break;
    if (a->longest > 0 && (b.count + 1) * each > FORK_TOKENS) break;
    b.count++;
  }
  return b;
}

/* Sends this process's results, of questions [from, to) among order[0..count), to all processes. */
static wn_status round_tell(struct evaluation *e, const int64_t *order, int64_t count, int64_t from, int64_t to,
                            bool *cancelled) {
  struct wn_questions *q = e->q;
  size_t n = 0;
  for (int64_t i = 0; i < count; i++)
    for (size_t k = q->all[order[i]].first; k < q->all[order[i]].first + (size_t)q->all[order[i]].count; k++) {
      const bool own = i >= from && i < to;
      e->told[n++] = own ? q->requests[k].log_probability : 0;
      e->told[n++] = own && q->requests[k].greedy;
    }
  e->told[n++] = *cancelled;
  WN_TRY(wn_dist_merge(e->ctx, e->told, n));
  *cancelled = e->told[--n] > 0;
  for (int64_t i = count; i-- > 0;)
    for (size_t k = q->all[order[i]].first + (size_t)q->all[order[i]].count; k-- > q->all[order[i]].first;) {
      q->requests[k].greedy = e->told[--n] > 0;
      q->requests[k].log_probability = e->told[--n];
    }
  return WN_OK;
}

/* A round: one batch for each process, from order[0] on. *count: questions in all of these batches. */
static wn_status evaluation_round(struct evaluation *e, const int64_t *order, int64_t left, int64_t *count,
                                  bool *cancelled) {
  const int size = wn_dist_size(e->ctx), rank = wn_dist_rank(e->ctx);
  int64_t from = 0, to = 0;
  *count = 0;
  *cancelled = rank == 0 && wn_context_cancelled(e->ctx);
  for (int i = 0; i < size && *count < left; i++) {
    const struct batch b = batch_of(e, order + *count, left - *count);
    if (i == rank && !*cancelled) {
      from = *count, to = *count + b.count;
      WN_TRY(batch_run(e, &b));
    }
    *count += b.count;
  }
  if (size > 1) WN_TRY(round_tell(e, order, *count, from, to, cancelled));
  for (int64_t i = 0; i < *count && !*cancelled; i++) {
    e->q->all[order[i]].how = WN_ASKED_SCORED;
    WN_TRY(wn_task_log_add(e->ctx, e->log, e->q, order[i]));
  }
  return wn_eval_log_flush(e->ctx, e->log);
}

/* Adds up the tokens of all processes, and takes the largest number of bytes. */
static wn_status evaluation_add_up(struct evaluation *e) {
  const int size = wn_dist_size(e->ctx);
  double tokens[] = {(double)e->r->tokens_scored, (double)e->r->tokens_fed};
  if (size == 1) return WN_OK;
  WN_TRY(wn_dist_merge(e->ctx, tokens, 2));
  e->r->tokens_scored = (uint64_t)tokens[0];
  e->r->tokens_fed = (uint64_t)tokens[1];
  for (int i = 0; i < size; i++) {
    double bytes = i == wn_dist_rank(e->ctx) ? (double)e->r->cache_bytes : 0;
    WN_TRY(wn_dist_broadcast(e->ctx, &bytes, sizeof bytes, i));
    if (bytes > (double)e->r->cache_bytes) e->r->cache_bytes = (uint64_t)bytes;
  }
  return WN_OK;
}

static wn_status evaluation_run_ordered(struct evaluation *e, const int64_t *order, int64_t left) {
  const int64_t questions = e->q->count;
  int64_t taken;
  bool cancelled;
  for (int64_t i = 0; i < left; i += taken) {
    WN_TRY(evaluation_round(e, order + i, left - i, &taken, &cancelled));
    if (cancelled)
      return wn_fail(e->ctx, WN_ERR_CANCELLED, "stopped after %lld of %lld questions",
                     (long long)(questions - left + i), (long long)questions);
    if (e->o->progress) e->o->progress(e->o->user, (uint64_t)(questions - left + i + taken), (uint64_t)questions);
  }
  return evaluation_add_up(e);
}

static wn_status evaluation_run(struct evaluation *e) {
  struct wn_questions *q = e->q;
  int64_t *order;
  int64_t left = 0;
  WN_TRY(WN_ALLOC(e->ctx, "order of the questions", q->count, &order));
  for (int64_t i = 0; i < q->count; i++)
    if (q->all[i].how == WN_ASKED_OPEN) order[left++] = i;
  qsort_r(order, (size_t)left, sizeof(int64_t), order_compare, q);
  wn_status status = WN_OK;
  if (wn_dist_size(e->ctx) > 1)
    status = WN_ALLOC(e->ctx, "scores of other processes", 2 * q->request_count + 1, &e->told);
  if (status == WN_OK) status = evaluation_run_ordered(e, order, left);
  wn_free(e->told);
  wn_free(order);
  return status;
}

int64_t wn_budgets_least(const wn_model *model, const wn_budgets *budgets) {
  const wn_model_config *c = wn_model_config_get(model);
  int64_t least = INT64_MAX;
  for (int64_t l = 0; budgets && l < c->layers; l++)
    for (int64_t h = 0; h < c->kv_heads; h++)
      if (wn_budgets_of(budgets, l, h) < least) least = wn_budgets_of(budgets, l, h);
  return least;
}

wn_status wn_questions_answer(wn_context *ctx, wn_model *model, const wn_task_options *options, int64_t context,
                              struct wn_questions *questions, const struct wn_eval_log *log, wn_task_result *result) {
  struct evaluation e = {.ctx = ctx,
                         .model = model,
                         .o = options,
                         .q = questions,
                         .log = log,
                         .r = result,
                         .context = context,
                         .least = wn_budgets_least(model, options->budgets)};
  const wn_status status = evaluation_run(&e);
  kept_clear(&e.heads);
  kept_clear(&e.tails);
  wn_arrays_clear(&e.arrays);
  return status;
}
