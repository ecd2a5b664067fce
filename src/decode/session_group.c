/* A step of several sessions together, one token each.
 *
 * Embedding, norms, projections, feed-forward and logits run as one batch of n sequences of one token, each at its own
 * position. Products compute rows independently (rows_apart, ops.h): a row has the same bits as alone. Between
 * wn_layer_before and wn_layer_after every session attends to its own cache, on a view of its row (wn_session_attend, B
 * 1), with its own scratch. If there are at least as many sessions as threads, each thread takes some of them;
 * otherwise the sessions run one after the other with all threads.
 *
 * A session may have several rows in a step, next to each other: its token and rows ahead (session_ahead.h). They
 * attend one after the other.
 *
 * A step reads the parameters once and takes 2 x parameters flops per row; the attention reads each session's cache. */
#include <omp.h>
#include <string.h>

#include "base/misuse.h"
#include "decode/session_ahead.h"
#include "decode/session_group.h"
#include "winnow/generate.h"

static void group_lay(struct wn_session_group *g) {
  const wn_model_config *c = &g->model->config;
  const size_t e = wn_dtype_size(g->model->dtype);
  const int64_t n = g->most, C = c->width;
  const bool apart = !g->model->backend->memory->host;
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(g->blocks.large, 1, "activations", true, WN_DIMS((int64_t)g->blocks.large_bytes)),
      WN_ARRAY_SIZED(g->blocks.derived, 1, "derived activations", true, WN_DIMS((int64_t)g->blocks.derived_bytes)),
      WN_ARRAY_SIZED(g->blocks.exact, 1, "exact activations", true, WN_DIMS((int64_t)g->blocks.exact_bytes)),
      WN_ARRAY_SIZED(g->tokens_shown, sizeof *g->tokens, "tokens shown", apart, WN_DIMS(n)),
      WN_ARRAY_SIZED(g->positions_shown, sizeof *g->positions, "positions shown", apart, WN_DIMS(n)),
      WN_ARRAY_SIZED(g->x_out, e, "x_out", true, WN_DIMS(n, C)),
      WN_ARRAY_SIZED(g->n_out, e, "n_out", true, WN_DIMS(n, C)),
      WN_ARRAY_SIZED(g->rstd, e, "rstd", true, WN_DIMS(n)),
      WN_ARRAY_SIZED(g->mean, e, "mean", c->norm == WN_NORM_LAYER, WN_DIMS(n)),
      WN_ARRAY_SIZED(g->logits, e, "logits", true, WN_DIMS(n, c->vocab_size)),
  };
  const struct wn_array host[] = {
      WN_ARRAY_FOR(g->tokens, "tokens", true, WN_DIMS(n)),
      WN_ARRAY_FOR(g->positions, "positions", true, WN_DIMS(n)),
      WN_ARRAY_FOR(g->rows, "rows", true, WN_DIMS(n)),
      WN_ARRAY_FOR(g->order, "order", true, WN_DIMS(n)),
  };
  WN_ARRAYS_LAY(&g->arrays, rows);
  WN_ARRAYS_LAY(&g->host, host);
  if (!apart) g->tokens_shown = g->tokens, g->positions_shown = g->positions;
  wn_layer_temp_lay(c, wn_layer_types_of(g->model->dtype), n, 1, false, false, &g->arrays, &g->temp);
}

static wn_status group_arrays(wn_context *ctx, struct wn_session_group *g) {
  struct wn_layer_acts acts;
  if (!wn_layer_acts_plan(&g->model->config, wn_layer_types_of(g->model->dtype), g->most, 1, false, &g->blocks, &acts))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session group: activations of %lld sessions do not fit in memory",
                   (long long)g->most);
  g->arrays.memory = g->model->backend->memory;
  group_lay(g);
  WN_TRY(wn_arrays_check(ctx, &g->arrays, "session group of %lld sessions", (long long)g->most));
  WN_TRY(wn_arrays_check(ctx, &g->host, "session group of %lld sessions", (long long)g->most));
  WN_TRY(wn_arrays_allocate(ctx, &g->arrays, "a group of sessions"));
  WN_TRY(wn_arrays_allocate(ctx, &g->host, "a group of sessions"));
  group_lay(g);
  return WN_OK;
}

static void group_begin(struct wn_run *run, const struct wn_session_group *g, int64_t n) {
  wn_run_init(run, g->model, n, 1);
  run->exec.scratch = g->scratch;
  run->exec.scratch_bytes = g->scratch_bytes;
  run->positions = g->positions_shown;
  run->rows_apart = true;
}

/* Does the session rotate layer l's queries and keys in its own way: by cache positions, or by angles of its own? */
static bool group_turns_itself(const struct wn_session *s, int64_t l) {
  return wn_session_turns_itself(s) || wn_session_by_cache_position(s, l);
}

/* How many rows before row i are of the same session. */
static int64_t group_ahead(const wn_session_row *rows, int64_t i) {
  int64_t n = 0;
  while (n < i && rows[i - n - 1].session == rows[i].session) n++;
  return n;
}

/* Row i as a step of one token. */
static wn_status group_row(const struct wn_run *run, struct wn_session *s, int64_t i, int64_t l,
                           const struct wn_layer_acts *a, struct wn_run *one, struct wn_layer_acts *own) {
  wn_layer_acts_row(&run->model->config, run->exec.dtype, a, i, own);
  wn_session_begin(one, s, 1);
  one->positions = run->positions + i;
  return run->unturned && !wn_session_by_cache_position(s, l) ? wn_layer_turn(one, l, own) : WN_OK;
}

/* The attention of the session whose first row is i, of n. */
static wn_status group_attend_rows(const struct wn_run *run, struct wn_session *s, int64_t i, int64_t n, int64_t l,
                                   const struct wn_layer_acts *a, int threads) {
  struct wn_run one[1 + WN_DRAFT_MAX];
  struct wn_layer_acts own[1 + WN_DRAFT_MAX];
  for (int64_t j = 0; j < n; j++) WN_TRY(group_row(run, s, i + j, l, a, &one[j], &own[j]));
  if (n > 1) return wn_session_attend_ahead(one, s, l, own, n, threads);
  one->exec.threads = threads;
  return wn_session_attend(one, s, l, own, false);
}

static void group_attend_session(const struct wn_run *run, wn_session_row *rows, int64_t left, int64_t i, int64_t l,
                                 const struct wn_layer_acts *a, int threads) {
  int64_t n = 1;
  while (n < left && rows[n].session == rows->session) n++;
  if (rows->status != WN_OK) return;
  const wn_status status = group_attend_rows(run, rows->session, i, n, l, a, threads);
  for (int64_t j = 0; j < n; j++) rows[j].status = status;
}

static void group_attend(const struct wn_run *run, wn_session_row *rows, int64_t n, int64_t l,
                         const struct wn_layer_acts *a) {
  const int threads = run->exec.threads;
  int64_t sessions = 0;
  for (int64_t i = 0; i < n; i++) sessions += group_ahead(rows, i) == 0;
  /* One session after the other, with all threads. An OpenMP region of one thread around theirs would create the
   * threads anew. If the backend's memory is not the host's, a context's calls come one after the other. */
  if (sessions < threads || !wn_run_memory(run)->host) {
    for (int64_t i = 0; i < n; i++)
      if (group_ahead(rows, i) == 0) group_attend_session(run, rows + i, n - i, i, l, a, threads);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t i = 0; i < n; i++)
    if (group_ahead(rows, i) == 0) group_attend_session(run, rows + i, n - i, i, l, a, 1);
}

/* Runs all layers. When measuring, without the attention, for which sessions have their own scratch. */
static wn_status group_run_layers(struct wn_run *run, struct wn_session_group *g, wn_session_row *rows,
                                  struct wn_session_rows *out) {
  const wn_model_config *c = &g->model->config;
  const int64_t n = run->B;
  struct wn_layer_acts a;
  struct wn_layer_blocks blocks = g->blocks;
  if (!wn_layer_acts_plan(c, wn_layer_types_of(run->exec.dtype), n, 1, false, &blocks, &a))
    return wn_fail(g->ctx, WN_ERR_ARGUMENT, "session group: activations do not fit in memory");
  run->tokens = g->tokens_shown;
  WN_TRY(wn_run_embed(run, a.n2, a.rstd2, a.mean2, a.x));
  for (int64_t l = 0; l < c->layers; l++) {
    run->unturned = false;
    for (int64_t i = 0; i < n && !run->measuring; i++)
      run->unturned = run->unturned || group_turns_itself(rows[i].session, l);
    WN_TRY(wn_layer_before(run, l, &a, l ? wn_layer_stream(run, &a) : NULL, l ? g->temp.branch : NULL));
    if (!run->measuring) group_attend(run, rows, n, l, &a);
    WN_TRY(wn_layer_after(run, l, &a, &g->temp, true));
  }
  *out = (struct wn_session_rows){wn_layer_stream(run, &a), g->temp.branch};
  return WN_OK;
}

static wn_status group_output(struct wn_run *run, struct wn_session_group *g, const struct wn_session_rows *out) {
  WN_TRY(wn_run_norm(run, run->B, wn_run_final_norm(run, g->rstd, g->mean), out->mid, out->branch, g->x_out, g->n_out));
  return wn_run_output(run, g->n_out, run->B, g->logits);
}

/* A backend may need other scratch for few rows than for many. */
static wn_status group_measure(struct wn_session_group *g, size_t *need) {
  *need = 0;
  for (int64_t n = 1;; n = 2 * n < g->most ? 2 * n : g->most) {
    struct wn_run run;
    struct wn_session_rows out;
    group_begin(&run, g, n);
    run.measuring = true;
    WN_TRY(group_run_layers(&run, g, NULL, &out));
    WN_TRY(group_output(&run, g, &out));
    if (run.need > *need) *need = run.need;
    if (n == g->most) return WN_OK;
  }
}

wn_status wn_session_group_create(wn_context *ctx, wn_model *model, int64_t most, wn_session_group **out) {
  WN_CHECK_WORK(WN_HANDLE(model, MODEL), WN_POINTER(out));
  void *memory;
  size_t need;
  wn_status status;
  *out = NULL;
  if (most < 1 || most > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session group of %lld sessions: expected 1 to 2147483647", (long long)most);
  if (model->encoder)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "session group: sessions of an encoder-decoder take no steps together");
  WN_TRY(wn_alloc_reserve(ctx));
  WN_TRY(wn_alloc(ctx, "session group", sizeof(struct wn_session_group), &memory));
  struct wn_session_group *g = memory;
  wn_handle_mark(g, WN_HANDLE_SESSION_GROUP);
  g->ctx = ctx;
  g->model = model;
  wn_model_keep(model);
  g->most = most;
  WN_TRY_GOTO(group_arrays(ctx, g), fail);
  WN_TRY_GOTO(group_measure(g, &need), fail);
  WN_TRY_GOTO(model->backend->memory->allocate(ctx, "scratch of a session group", need, &g->scratch), fail);
  g->scratch_bytes = need;
  *out = g;
  return WN_OK;
fail:
  wn_session_group_destroy(g);
  return status;
}

void wn_session_group_destroy(wn_session_group *g) {
  WN_CHECK_OR(, WN_HANDLE_AS("group", g, SESSION_GROUP));
  g->model->backend->memory->release(g->scratch);
  wn_session_room_clear(&g->room);
  wn_arrays_clear(&g->arrays);
  wn_arrays_clear(&g->host);
  wn_model_release(g->model);
  wn_free(g);
}

/* --- a step --- */

static wn_status group_check_row(wn_context *ctx, const struct wn_session_group *g, const wn_session_row *rows,
                                 int64_t i) {
  const struct wn_session *s = rows[i].session;
  WN_CHECK_ARGUMENTS(ctx, WN_HANDLE_AS("rows' session", s, SESSION));
  if (s->model != g->model)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session group: session %lld is of another model", (long long)i);
  if (s->B != 1)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "session group: session %lld has %lld sequences, expected one",
                   (long long)i, (long long)s->B);
  const int64_t ahead = group_ahead(rows, i);
  if (ahead > 0 && s->ahead && ahead <= s->ahead->most && ahead <= wn_session_ahead_room(s, ahead))
    return wn_model_check_ids(ctx, s->model, "session: token", &rows[i].token, 1);
  for (int64_t j = 0; j < i; j++)
    if (rows[j].session == s)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "session group: rows %lld and %lld are of the same session", (long long)j,
                     (long long)i);
  return wn_session_check_tokens(ctx, s, &rows[i].token, 1, 0);
}

static wn_status group_check(wn_context *ctx, const struct wn_session_group *g, const wn_session_row *rows, int64_t n) {
  if (n < 1 || n > g->most)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session group: %lld sessions, expected 1 to %lld", (long long)n,
                   (long long)g->most);
  for (int64_t i = 0; i < n; i++) WN_TRY(group_check_row(ctx, g, rows, i));
  return WN_OK;
}

/* Copies row i of the layers' output and of the logits to its session. */
static wn_status group_hand_out(struct wn_session_group *g, const struct wn_session_rows *out, bool logits, int64_t i,
                                wn_session_row *row) {
  const wn_dtype dtype = g->model->dtype;
  const struct wn_memory *memory = g->model->backend->memory;
  const int64_t C = g->model->config.width, V = g->model->config.vocab_size;
  const size_t bytes = (size_t)C * wn_dtype_size(dtype);
  struct wn_session *s = row->session;
  const int64_t ahead = group_ahead(row - i, i) - 1;
  if (ahead >= 0) {
    struct wn_session_ahead *x = s->ahead;
    WN_TRY(memory->copy(g->ctx, wn_element(x->mid, ahead * C, dtype), wn_element(out->mid, i * C, dtype), bytes));
    WN_TRY(memory->copy(g->ctx, wn_element(x->branch, ahead * C, dtype), wn_element(out->branch, i * C, dtype), bytes));
    return memory->copy(g->ctx, wn_element(x->logits, ahead * V, dtype), wn_element(g->logits, i * V, dtype),
                        (size_t)V * wn_dtype_size(dtype));
  }
  WN_TRY(memory->copy(g->ctx, s->mid, wn_element(out->mid, i * C, dtype), bytes));
  WN_TRY(memory->copy(g->ctx, s->branch, wn_element(out->branch, i * C, dtype), bytes));
  s->position++;
  s->counted = s->counts != NULL;
  s->broken = false;
  s->logits_known = false;
  if (!logits) return WN_OK;
  WN_TRY(memory->copy(g->ctx, s->logits, wn_element(g->logits, i * V, dtype), (size_t)V * wn_dtype_size(dtype)));
  s->logits_known = true;
  return row->logits ? wn_session_copy_logits(g->model, s->logits, 1, row->logits) : WN_OK;
}

/* How many threads copy results out: several are worth it for the logits of many rows, if copies need no order. */
static int group_hands(const struct wn_session_group *g, bool logits, int64_t n) {
  return logits && n > 1 && g->model->backend->memory->host ? g->model->ctx->threads : 1;
}

static wn_status group_step(struct wn_session_group *g, wn_session_row *rows, int64_t n, bool logits,
                            struct wn_session_rows *out) {
  struct wn_run run;
  group_begin(&run, g, n);
  for (int64_t i = 0; i < n; i++) {
    struct wn_session *s = rows[i].session;
    const int64_t ahead = group_ahead(rows, i);
    if (ahead == 0) WN_TRY(wn_session_take_tokens(s, &rows[i].token, 1, 1));
    if (s->ahead) s->ahead->count = ahead;
    g->tokens[i] = rows[i].token;
    g->positions[i] = (int32_t)(s->position + ahead);
    s->broken = true;
  }
  WN_TRY(wn_session_show(g->model, g->tokens_shown, g->tokens, (size_t)n * sizeof *g->tokens));
  WN_TRY(wn_session_show(g->model, g->positions_shown, g->positions, (size_t)n * sizeof *g->positions));
  WN_TRY(group_run_layers(&run, g, rows, out));
  return logits ? group_output(&run, g, out) : WN_OK;
}

wn_status wn_session_group_advance(wn_context *ctx, struct wn_session_group *g, wn_session_row *rows, int64_t n,
                                   bool all) {
  const struct wn_memory *memory = g->model->backend->memory;
  struct wn_session_rows out;
  bool logits = all;
  wn_status status = group_check(ctx, g, rows, n);
  for (int64_t i = 0; i < n; i++) {
    rows[i].status = status;
    logits = logits || rows[i].logits;
  }
  if (status != WN_OK) return status;
  for (int64_t i = 0; i < n && status == WN_OK; i++) status = wn_session_stretch(rows[i].session, 1);
  for (int64_t i = 0; i < n && status == WN_OK; i++) status = wn_session_make_room(rows[i].session, 1, NULL);
  wn_memory_step_begin(g->ctx, memory);
  if (status == WN_OK) status = group_step(g, rows, n, logits, &out);
#pragma omp parallel for num_threads(group_hands(g, logits, n)) schedule(static)
  for (int64_t i = 0; i < n; i++) {
    if (status != WN_OK) {
      rows[i].status = status;
    } else if (rows[i].status == WN_OK) {
      rows[i].status = group_hand_out(g, &out, logits && (all || rows[i].logits), i, &rows[i]);
    }
  }
  const wn_status ended = wn_memory_step_end(g->ctx, memory, WN_OK);
  for (int64_t i = 0; i < n && ended != WN_OK; i++)
    if (rows[i].status == WN_OK) rows[i].status = ended;
  for (int64_t i = 0; i < n && status == WN_OK; i++) status = rows[i].status;
  return status;
}

wn_status wn_session_group_feed(wn_context *ctx, wn_session_group *g, wn_session_row *rows, int64_t n) {
  WN_CHECK_WORK(WN_HANDLE_AS("group", g, SESSION_GROUP), WN_ARRAY(rows, n));
  return wn_session_group_advance(ctx, g, rows, n, false);
}
