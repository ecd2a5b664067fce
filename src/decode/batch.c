/* A pass over the rows of several sessions.
 *
 * Each pass runs the same layers as training (layer.h). Embedding, norms, projections and feed-forward take all rows at
 * once. Between wn_layer_before and wn_layer_after each session's rows go into its caches and attend there, on a view
 * of the layer's arrays (wn_session_attend).
 *
 * No row depends on the others: rows of single tokens come first and are computed apart in products (wn_run.apart);
 * then each piece of a prompt is a product of its own, on weights that the rows before it have read. If there are at
 * least as many single tokens as threads, each thread takes some of their sessions' attention; otherwise, and for
 * pieces, one comes after the other with all threads. On a device single tokens' attention is one call of the backend.
 *
 * A context that will be compressed where it ends may be read the other way round: each layer reads all pieces, one
 * after the other, and is compressed before the next one begins. The rows' residual stream is kept between the layers,
 * T C numbers, and only one layer is in memory in full. A row's bits are the same, since each piece is a product of its
 * own either way.
 *
 * A token costs 2 x parameters flops in the projections and 4 T H D flops per layer in the attention. A pass reads the
 * parameters once for all single tokens, and once for each piece. */
#include "decode/batch.h"

#include "base/misuse.h"
#include "base/parallel.h"
#include "decode/session_ahead.h"
#include "decode/session_once.h"
#include "winnow/generate.h"

struct batch {
  struct wn_run run;
  struct wn_room *room;
  struct wn_feed *feeds;
  int64_t n;
  bool full;   /* when measuring: assume full caches */
  bool logits; /* some of the rows apart want theirs */
  bool step;   /* single tokens alone: a pass that repeats */
  int64_t l;   /* what threads compute: feeds' attention in layer l, from acts; feeds' results, from states */
  const struct wn_layer_acts *acts;
  const void *states;
};

static bool feed_is_apart(const struct wn_feed *f) {
  return f->ahead || (f->session->B == 1 && f->T == 1);
}

/* Gives the feeds their rows, and sets up the run. */
static void batch_begin(struct batch *b, const struct wn_model *model) {
  int64_t rows = 0, pieces = 0, apart = 0;
  b->step = true;
  for (int of_pieces = 0; of_pieces < 2; of_pieces++) {
    for (int64_t i = 0; i < b->n; i++) {
      struct wn_feed *f = &b->feeds[i];
      if (f->status != WN_OK || feed_is_apart(f) == of_pieces) continue;
      f->row = rows;
      rows += f->session->B * f->T;
      if (of_pieces) b->room->pieces[pieces++] = rows - f->row;
      if (!of_pieces) b->logits = b->logits || f->logits;
      b->step = b->step && (f->ahead || f->T == 1);
    }
    if (!of_pieces) apart = rows;
  }
  b->logits = b->logits && apart > 1;                           /* a single row's go to its session at once */
  const bool alone = b->n == 1 && !b->feeds->ahead && rows > 0; /* an encoder's attention depends on it */
  wn_run_init(&b->run, model, alone ? b->feeds->session->B : rows, alone ? b->feeds->T : 1);
  b->run.apart = apart;
  b->run.pieces = b->room->pieces;
  b->run.exec.scratch = b->room->scratch;
  b->run.exec.scratch_bytes = b->room->scratch_bytes;
  b->run.tokens = b->room->tokens_shown;
  b->run.positions = b->room->positions_shown;
  if (!alone) return;
  const struct wn_session_inputs *in = &b->feeds->session->inputs;
  b->run.cross = (struct wn_cross){.S = in->S, .count = in->count_shown, .kv = in->kv, .kv_bytes = in->bytes};
}

/* --- attention --- */

/* Does the session rotate layer l's queries and keys in its own way: by cache positions, or by angles of its own? */
static bool batch_turns_itself(const struct wn_session *s, int64_t l) {
  return wn_session_turns_itself(s) || wn_session_by_cache_position(s, l);
}

/* T tokens of each sequence from row `row` on, as a pass of their own. */
static wn_status batch_view(const struct batch *b, struct wn_session *s, int64_t row, int64_t T, int64_t l,
                            const struct wn_layer_acts *a, struct wn_run *one, struct wn_layer_acts *own) {
  wn_layer_acts_from(&b->run.model->config, b->run.exec.dtype, a, row, own);
  wn_session_begin(one, s, T);
  if (T > 1) one->exec.scratch = b->run.exec.scratch, one->exec.scratch_bytes = b->run.exec.scratch_bytes;
  one->exec.threads = b->run.exec.threads;
  one->measuring = b->run.measuring;
  one->positions = b->run.positions + row;
  return b->run.unturned && !wn_session_by_cache_position(s, l) ? wn_layer_turn(one, l, own) : WN_OK;
}

static wn_status batch_attend_feed(struct batch *b, const struct wn_feed *f, int64_t l, const struct wn_layer_acts *a,
                                   int threads) {
  struct wn_run one[1 + WN_DRAFT_MAX];
  struct wn_layer_acts own[1 + WN_DRAFT_MAX];
  const int64_t n = f->ahead ? f->T : 1;
  for (int64_t j = 0; j < n; j++)
    WN_TRY(batch_view(b, f->session, f->row + j, f->ahead ? 1 : f->T, l, a, &one[j], &own[j]));
  if (n > 1) return wn_session_attend_ahead(one, f->session, l, own, n, threads);
  one->exec.threads = threads;
  const wn_status status = wn_session_attend(one, f->session, l, own, b->full);
  if (b->run.measuring && one->need > b->run.need) b->run.need = one->need;
  return status;
}

static void batch_attend_apart(void *batch, int64_t i) {
  struct batch *b = batch;
  struct wn_feed *f = &b->feeds[i];
  if (f->status == WN_OK && feed_is_apart(f)) f->status = batch_attend_feed(b, f, b->l, b->acts, 1);
}

/* Single rows whose attention the backend may compute together. */
enum { TOGETHER = 16 };
struct batch_rows {
  struct wn_feed *feed[TOGETHER];
  struct wn_run run[TOGETHER];
  struct wn_exec exec[TOGETHER];
  struct wn_attention call[TOGETHER];
  struct wn_kv_later later;
  int64_t count;
};

static void batch_rows_attend(struct batch_rows *r, int64_t l) {
  wn_status status = wn_kv_later_run(&r->later);
  if (status == WN_OK) status = wn_op_attention_together(r->exec, r->call, r->count);
  for (int64_t i = 0; i < r->count; i++) {
    struct wn_feed *f = r->feed[i];
    f->status = status == WN_OK ? wn_session_attend_end(&r->run[i], f->session, l, &r->call[i]) : status;
  }
  r->count = 0;
}

/* Where the backend's memory is not the host's: single rows together, and one feed of another kind after the other. */
static void batch_attend_beyond(struct batch *b, int64_t l, const struct wn_layer_acts *a) {
  struct batch_rows r;
  r.count = r.later.count = 0;
  for (int64_t i = 0; i < b->n; i++) {
    struct wn_feed *f = &b->feeds[i];
    struct wn_layer_acts own;
    if (f->status != WN_OK) continue;
    if (f->T > 1 || !wn_session_attends_together(f->session, l)) {
      f->status = batch_attend_feed(b, f, l, a, b->run.exec.threads);
      continue;
    }
    struct wn_run *run = &r.run[r.count];
    f->status = batch_view(b, f->session, f->row, 1, l, a, run, &own);
    if (f->status == WN_OK) f->status = wn_session_attend_begin(run, f->session, l, &own, &r.later, &r.call[r.count]);
    if (f->status != WN_OK) continue;
    r.exec[r.count] = run->exec, r.feed[r.count++] = f;
    if (r.count == TOGETHER) batch_rows_attend(&r, l);
  }
  batch_rows_attend(&r, l);
}

static void batch_attend(struct batch *b, int64_t l, const struct wn_layer_acts *a) {
  if (!wn_run_memory(&b->run)->host && !b->run.measuring) {
    batch_attend_beyond(b, l, a);
    return;
  }
  const int threads = b->run.exec.threads;
  int64_t apart = 0;
  for (int64_t i = 0; i < b->n; i++) apart += feed_is_apart(&b->feeds[i]);
  /* Inside a region the attention's own would have one thread. */
  const bool beside = apart > 1 && apart >= threads && !b->run.measuring;
  for (int64_t i = 0; i < b->n; i++) {
    struct wn_feed *f = &b->feeds[i];
    if (f->status == WN_OK && !(beside && feed_is_apart(f))) f->status = batch_attend_feed(b, f, l, a, threads);
  }
  b->l = l, b->acts = a;
  if (beside) wn_parallel_tasks(threads, b->n, batch_attend_apart, b);
}

/* --- layers --- */

static wn_status batch_acts(const struct batch *b, struct wn_layer_acts *a) {
  const struct wn_run *run = &b->run;
  struct wn_layer_blocks blocks = b->room->blocks;
  if (wn_layer_acts_plan(&run->model->config, wn_layer_types_of(run->exec.dtype), 1, run->B * run->T, false, &blocks,
                         a))
    return WN_OK;
  return wn_fail(run->exec.ctx, WN_ERR_ARGUMENT, "batch: activations do not fit in memory");
}

/* What the embedding's norm stores is not needed later, so layer 0's arrays serve for it. */
static wn_status batch_embed(struct batch *b, struct wn_layer_acts *a) {
  return wn_run_embed(&b->run, a->n2, a->rstd2, a->mean2, a->x);
}

/* Layer l up to its attention, from mid + branch, or from a->x if mid is NULL. */
static wn_status batch_layer(struct batch *b, int64_t l, struct wn_layer_acts *a, const void *mid, const void *branch) {
  struct wn_run *run = &b->run;
  run->unturned = false;
  for (int64_t i = 0; i < b->n; i++) run->unturned = run->unturned || batch_turns_itself(b->feeds[i].session, l);
  WN_TRY(wn_layer_before(run, l, a, mid, branch));
  batch_attend(b, l, a);
  return WN_OK;
}

/* The final norm, whose output is in a->n1: the last layer's x and n1 are no longer needed. */
static wn_status batch_end(struct batch *b, struct wn_layer_acts *a) {
  struct wn_run *run = &b->run;
  return wn_run_norm(run, run->B * run->T, wn_run_final_norm(run, a->rstd1, a->mean1), wn_layer_stream(run, a),
                     b->room->temp.branch, a->x, a->n1);
}

/* *states: [rows,C], and b->room->logits of the rows apart if they are wanted. */
static wn_status batch_layers(struct batch *b, const void **states) {
  struct wn_run *run = &b->run;
  struct wn_layer_acts a;
  struct wn_layer_temp *temp = &b->room->temp;
  WN_TRY(batch_acts(b, &a));
  WN_TRY(batch_embed(b, &a));
  for (int64_t l = 0; l < run->model->config.layers; l++) {
    WN_TRY(batch_layer(b, l, &a, l ? wn_layer_stream(run, &a) : NULL, l ? temp->branch : NULL));
    WN_TRY(wn_layer_after(run, l, &a, temp, true));
  }
  WN_TRY(batch_end(b, &a));
  *states = a.n1;
  return b->logits ? wn_run_output(run, a.n1, run->apart, b->room->logits) : WN_OK;
}

wn_status wn_session_measure(struct wn_session *s, size_t *step, size_t *piece) {
  *step = *piece = 0;
  wn_session_pretend(s, true);
  for (int64_t T = 1;; T = 2 * T < s->piece ? 2 * T : s->piece) {
    for (int pass = 0; pass < (T == 1 ? 4 : 2); pass++) { /* single tokens also on one thread */
      struct wn_feed f = {.session = s, .T = T};
      struct batch b = {.room = s->room, .feeds = &f, .n = 1, .full = pass & 1};
      const void *states;
      batch_begin(&b, s->model);
      if (pass & 2) b.run.exec.threads = 1;
      b.run.measuring = true;
      if (s->model->encoder)
        b.run.cross.S = s->model->config.encoder.context, b.run.cross.kv = (char *)s->model->params;
      WN_TRY(batch_layers(&b, &states));
      WN_TRY(f.status);
      WN_TRY(wn_run_output(&b.run, s->state, s->B, s->logits));
      size_t *need = T == 1 ? step : piece;
      if (b.run.need > *need) *need = b.run.need;
    }
    if (T == s->piece) break;
  }
  wn_session_pretend(s, false);
  wn_session_reset_caches(s);
  return WN_OK;
}

/* A backend may need other scratch for few rows than for many. The sessions measure pieces, and their attention. */
wn_status wn_batch_room(wn_context *ctx, const struct wn_model *model, int64_t rows, int64_t apart,
                        struct wn_room *room) {
  if (rows <= room->rows && apart <= room->apart) return WN_OK;
  WN_TRY(wn_room_fit(ctx, model, rows, apart, room));
  for (int64_t n = 1; n <= room->apart; n = 2 * n < room->apart || n == room->apart ? 2 * n : room->apart) {
    struct batch b = {.room = room, .logits = true};
    const void *states;
    wn_run_init(&b.run, model, n, 1);
    b.run.apart = n;
    b.run.measuring = true;
    b.run.tokens = room->tokens_shown, b.run.positions = room->positions_shown;
    wn_status status = batch_layers(&b, &states);
    if (status == WN_OK) status = wn_room_fit_scratch(ctx, model, b.run.need, room);
    if (status != WN_OK) room->apart = 0;
    WN_TRY(status);
  }
  return WN_OK;
}

/* --- what is fed, and what comes out --- */

static void batch_take_tokens(const struct wn_room *room, const struct wn_feed *f) {
  struct wn_session *s = f->session;
  for (int64_t b = 0; b < s->B; b++) {
    for (int64_t t = 0; t < f->T; t++) {
      const int32_t token = f->tokens[b * f->stride + t];
      const int64_t row = f->row + b * f->T + t, at = b * s->capacity + s->position + t;
      room->tokens[row] = token;
      room->positions[row] = (int32_t)(s->position + t);
      if (s->history) s->history[at] = token;
      if (s->once) s->once->text[at] = token;
      if (s->control) s->control[at] = (s->model->control && s->model->control[token]) || (s->marks && s->marks[at]);
    }
  }
  if (s->ahead) s->ahead->count = f->ahead ? f->T - 1 : 0;
  s->broken = true;
}

/* Copies a feed's last states to its session, and what was computed ahead. */
static wn_status batch_hand_out(const struct batch *b, const struct wn_feed *f, const char *states) {
  struct wn_session *s = f->session;
  struct wn_session_ahead *x = s->ahead;
  const struct wn_memory *memory = s->model->backend->memory;
  const size_t e = wn_dtype_size(s->model->dtype), C = (size_t)s->model->config.width * e,
               V = (size_t)s->model->config.vocab_size * e;
  const size_t guesses = f->ahead ? (size_t)f->T - 1 : 0, last = f->ahead ? 0 : (size_t)f->T - 1;
  const char *logits = (const char *)b->room->logits + (size_t)f->row * V;
  if (f->T == 1) WN_TRY(memory->copy(s->ctx, s->state, states, (size_t)s->B * C));
  for (size_t i = 0; i < (size_t)s->B && f->T > 1; i++)
    WN_TRY(memory->copy(s->ctx, (char *)s->state + i * C, states + (i * (size_t)f->T + last) * C, C));
  if (guesses > 0) WN_TRY(memory->copy(s->ctx, x->states, states + C, guesses * C));
  if (guesses > 0) WN_TRY(memory->copy(s->ctx, x->logits, logits + V, guesses * V));
  s->position += (int64_t)last + 1;
  s->counted = s->counts != NULL;
  s->broken = s->cut = false;
  s->logits_known = b->logits && f->logits && feed_is_apart(f);
  if (!s->logits_known) return WN_OK;
  WN_TRY(memory->copy(s->ctx, s->logits, logits, V));
  return f->out ? wn_session_copy_logits(s->model, s->logits, 1, f->out) : WN_OK;
}

/* What follows with all threads, one feed after the other. */
static wn_status batch_end_feed(const struct wn_feed *f, const void *states) {
  struct wn_session *s = f->session;
  if (f->logits && !s->logits_known) {
    WN_TRY(wn_session_last_logits(s));
    if (f->out) WN_TRY(wn_session_copy_logits(s->model, s->logits, s->B, f->out));
  }
  return f->take ? f->take(f->user, f, states) : WN_OK;
}

static const char *batch_states(const struct batch *b, const struct wn_feed *f, const void *states) {
  return wn_element(states, f->row * b->run.model->config.width, b->run.exec.dtype);
}

/* Several threads are worth it for the logits of many rows, if copies need no order. */
static int batch_hands(const struct batch *b) {
  return b->logits && wn_run_memory(&b->run)->host ? b->run.exec.threads : 1;
}

/* Takes the feeds' tokens, and shows them to the backend. */
static wn_status batch_take(const struct batch *b) {
  const struct wn_room *room = b->room;
  const size_t bytes = (size_t)(b->run.B * b->run.T) * sizeof *room->tokens;
  for (int64_t i = 0; i < b->n; i++)
    if (b->feeds[i].status == WN_OK) batch_take_tokens(room, &b->feeds[i]);
  WN_TRY(wn_session_show(b->run.model, room->tokens_shown, room->tokens, bytes));
  return wn_session_show(b->run.model, room->positions_shown, room->positions, bytes);
}

static void batch_hand_out_feed(void *batch, int64_t i) {
  const struct batch *b = batch;
  struct wn_feed *f = &b->feeds[i];
  if (f->status == WN_OK) f->status = batch_hand_out(b, f, batch_states(b, f, b->states));
}

static wn_status batch_pass(struct batch *b) {
  WN_TRY(batch_take(b));
  WN_TRY(batch_layers(b, &b->states));
  wn_parallel_for(batch_hands(b), b->n, batch_hand_out_feed, b);
  for (int64_t i = 0; i < b->n; i++) {
    struct wn_feed *f = &b->feeds[i];
    if (f->status == WN_OK) f->status = batch_end_feed(f, batch_states(b, f, b->states));
  }
  return WN_OK;
}

/* How many of the feeds fit in the room, at least one, for which it is made large enough. */
static wn_status batch_fit(wn_context *ctx, struct wn_room *room, const struct wn_feed *feeds, int64_t n,
                           int64_t *now) {
  const struct wn_model *model = feeds->session->model;
  int64_t rows = 0, apart = 0;
  for (*now = 0; *now < n; ++*now) {
    const struct wn_feed *f = &feeds[*now];
    const int64_t more = f->status == WN_OK ? f->session->B * f->T : 0, more_apart = feed_is_apart(f) ? more : 0;
    if (*now > 0 && (rows + more > room->rows || apart + more_apart > room->apart)) break;
    rows += more, apart += more_apart;
    if (f->T > 1) WN_TRY(wn_room_fit_scratch(ctx, model, f->session->room->scratch_bytes, room));
  }
  return wn_batch_room(ctx, model, rows, apart > 1 ? apart : 0, room);
}

wn_status wn_batch_run(wn_context *ctx, struct wn_room *room, struct wn_feed *feeds, int64_t n) {
  const struct wn_model *model = feeds->session->model;
  const struct wn_memory *memory = model->backend->memory;
  wn_status first = WN_OK;
  for (int64_t i = 0; i < n; i++) feeds[i].status = wn_session_make_room(feeds[i].session, feeds[i].T, &feeds[i].T);
  for (int64_t i = 0, now; i < n; i += now) {
    struct batch b = {.room = room, .feeds = feeds + i};
    wn_status status = batch_fit(ctx, room, b.feeds, n - i, &now);
    if (now == 0) now = 1;
    b.n = now;
    batch_begin(&b, model);
    if (b.step) wn_memory_step_begin(ctx, memory);
    if (status == WN_OK && b.run.B * b.run.T > 0) status = batch_pass(&b);
    if (b.step) status = wn_memory_step_end(ctx, memory, status);
    for (int64_t k = 0; k < now; k++)
      if (b.feeds[k].status == WN_OK) b.feeds[k].status = status;
  }
  for (int64_t i = 0; i < n && first == WN_OK; i++) first = feeds[i].status;
  return first;
}

wn_status wn_batch_feed(wn_context *ctx, struct wn_feed *f, int64_t T, int64_t chunk) {
  struct wn_session *s = f->session;
  const int32_t *tokens = f->tokens;
  for (f->done = 0; f->done < T; f->done += f->T) {
    const int64_t most = chunk > 0 ? chunk : wn_session_place_after(s->position) - s->position, left = T - f->done;
    f->tokens = tokens + f->done;
    f->T = left < most ? left : most;
    if (f->T > s->piece) f->T = s->piece;
    WN_TRY(wn_batch_run(ctx, s->room, f, 1));
  }
  return WN_OK;
}

/* ---- a context, layer by layer ---- */

bool wn_session_reads_by_layer(const struct wn_session *s) {
  const wn_budgets *b = &s->budgets;
  const bool once = b->layers > 0 && (b->when == WN_WHEN_PROMPT || b->when == WN_WHEN_HOLD);
  const bool alone = s->B == 1 || b->allot < WN_ALLOT_ADA, handed_on = s->once && s->once->joined;
  return once && alone && s->position == 0 && !s->broken && !handed_on && !wn_session_once_repeats(s);
}

wn_status wn_reading_begin(wn_context *ctx, struct wn_reading *r) {
  struct wn_session *s = r->feed.session;
  const size_t row = (size_t)s->B * (size_t)s->model->config.width * wn_dtype_size(s->model->dtype);
  size_t bytes;
  WN_TRY(wn_session_check_tokens(ctx, s, r->feed.tokens, r->feed.T, 0));
  s->position = r->feed.T; /* a share of the context is known now */
  const wn_status status = wn_session_check_pins(ctx, s, true);
  s->position = 0;
  WN_TRY(status);
  if (!wn_mul_size((size_t)r->feed.T, row, &bytes))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session: a context of %lld tokens does not fit in memory",
                   (long long)r->feed.T);
  WN_TRY(s->model->backend->memory->allocate(ctx, "the residual stream of a context", bytes, &r->x));
  r->layer = 0;
  s->carried = bytes;
  wn_session_count_peak(s, 0);
  return WN_OK;
}

static void reading_end(struct wn_reading *r) {
  struct wn_session *s = r->feed.session;
  s->model->backend->memory->release(r->x);
  r->x = NULL;
  s->carried = 0;
}

void wn_reading_drop(struct wn_reading *r) {
  struct wn_session *s = r->feed.session;
  if (!r->x) return;
  reading_end(r);
  wn_session_reset_caches(s);
  wn_session_once_reset(s);
  s->position = 0;
  s->broken = s->cut = s->logits_known = s->counted = false;
}

/* The layer's part of T tokens from t0 on. Of the last layer only the last row's output is needed. */
static wn_status reading_piece(struct wn_reading *r, int64_t t0, int64_t T) {
  struct wn_feed f = r->feed;
  struct wn_session *s = f.session;
  struct batch b = {.room = s->room, .feeds = &f, .n = 1};
  const int64_t l = r->layer, n = s->B * T * s->model->config.width;
  const bool last = l + 1 == s->model->config.layers, ends = t0 + T == r->feed.T;
  struct wn_layer_acts a;
  s->position = t0;
  f.tokens += t0, f.T = T;
  batch_begin(&b, s->model);
  void *x = wn_element(r->x, s->B * t0 * s->model->config.width, b.run.exec.dtype);
  WN_TRY(batch_take(&b));
  WN_TRY(batch_acts(&b, &a));
  WN_TRY(l == 0 ? batch_embed(&b, &a) : wn_run_copy(&b.run, a.x, x, n));
  WN_TRY(batch_layer(&b, l, &a, NULL, NULL));
  WN_TRY(f.status);
  if (last && !ends) return WN_OK;
  WN_TRY(wn_layer_after(&b.run, l, &a, &b.room->temp, true));
  const struct wn_add sum = {.n = n, .x = wn_layer_stream(&b.run, &a), .z = b.room->temp.branch, .y = x};
  if (!last) return wn_run_add_forward(&b.run, &sum);
  WN_TRY(batch_end(&b, &a));
  WN_TRY(batch_hand_out(&b, &f, batch_states(&b, &f, a.n1)));
  return batch_end_feed(&f, a.n1);
}

static wn_status reading_layer(struct wn_reading *r) {
  struct wn_session *s = r->feed.session;
  const int64_t l = r->layer, all = r->feed.T;
  for (int64_t i = s->first[l]; i < s->first[l + 1]; i++)
    if (wn_session_grows(s, i)) WN_TRY(wn_session_set_capacity(s, i, wn_session_room(s, all)));
  for (int64_t t = 0, T; t < all; t += T) {
    const int64_t place = wn_session_place_after(t) - t, most = place < s->piece ? place : s->piece;
    T = all - t < most ? all - t : most;
    WN_TRY(reading_piece(r, t, T));
  }
  s->position = all;
  return wn_session_compress_layer(s, l);
}

wn_status wn_reading_layer(struct wn_reading *r) {
  struct wn_session *s = r->feed.session;
  const wn_status status = reading_layer(r);
  if (status != WN_OK) {
    wn_reading_drop(r);
    return status;
  }
  s->compressed = ++r->layer == s->model->config.layers;
  s->broken = !s->compressed;
  if (s->compressed)
    reading_end(r);
  else
    s->position = 0;
  return WN_OK;
}

wn_status wn_batch_check(wn_context *ctx, const struct wn_model *model, const struct wn_feed *feeds, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const struct wn_session *s = feeds[i].session;
    WN_CHECK_ARGUMENTS(ctx, WN_HANDLE_AS("rows' session", s, SESSION));
    if (s->model != model)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "session group: session %lld is of another model", (long long)i);
    if (s->B != 1)
      return wn_fail(ctx, WN_ERR_UNSUPPORTED, "session group: session %lld has %lld sequences, expected one",
                     (long long)i, (long long)s->B);
    for (int64_t j = 0; j < i; j++)
      if (feeds[j].session == s)
        return wn_fail(ctx, WN_ERR_ARGUMENT, "session group: rows %lld and %lld are of the same session", (long long)j,
                       (long long)i);
    WN_TRY(wn_session_check_tokens(ctx, s, feeds[i].tokens, feeds[i].T, 0));
    const int64_t guesses = feeds[i].ahead ? feeds[i].T - 1 : 0;
    if (guesses > 0 && (!s->ahead || guesses > s->ahead->most || guesses > wn_session_ahead_room(s, guesses)))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "session group: session %lld has no room for %lld rows ahead", (long long)i,
                     (long long)guesses);
  }
  return WN_OK;
}
