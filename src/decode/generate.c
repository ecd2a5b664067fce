/* Generating: feeds a prompt to a session, then draws a token, passes on its text and feeds it, again and again until
 * something ends the text.
 *
 * Text is delayed for two reasons. A text stream (winnow/tokenizer.h) gives whole characters only. Then the longest
 * suffix that may begin a stop string is held back until it is one or cannot become one. Of several stop strings the
 * one that is complete first ends the text, wherever tokens begin. The search costs (text held + piece) x stop strings
 * x their length per token; text that was passed on is not searched again.
 *
 * The model's backend draws the token (ops/sample.h). If its memory is not the host's, logits stay there and only the
 * token comes back, unless a callback wants the logits.
 *
 * A call allocates one array of V logits and the buffer of the text that is held back, which grows as needed. */
#include "winnow/generate.h"

#include <math.h>
#include <string.h>

#include "backends/backends.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/misuse.h"
#include "base/options.h"
#include "decode/drafts.h"
#include "text/constraint.h"
#include "text/declared.h"
#include "text/utf8.h"

enum { HELD_BYTES = 4096 }; /* usually more than a token's text and a stop string together */

const char *wn_generate_end_name(wn_generate_end end) {
  static const char *const names[WN_GENERATE_END_COUNT] = {"length", "end", "stop", "context", "interrupt"};
  return (unsigned)end < WN_GENERATE_END_COUNT ? names[end] : "unknown";
}

void wn_generate_options_init(wn_generate_options *options, size_t size) {
  WN_CHECK_OR(, WN_POINTER(options));
  wn_generate_options defaults = {.max_tokens = 256, .cache = WN_CACHE_AUTO, .repetition_penalty = 1};
  wn_sampling_init(&defaults.sampling);
  wn_options_default(&defaults, sizeof defaults, options, size);
}

void wn_generate_options_declared(const wn_model *model, wn_generate_options *o) {
  WN_CHECK_OR(, WN_HANDLE(model, MODEL), WN_POINTER(o));
  const wn_declared *d = &model->declared;
  double temperature;
  if (wn_declared_temperature(d, &temperature)) o->sampling.temperature = temperature;
  if (d->given & WN_DECLARED_TOP_P) o->sampling.top_p = d->top_p;
  if (d->given & WN_DECLARED_MIN_P) o->sampling.min_p = d->min_p;
  if (d->given & WN_DECLARED_TOP_K) o->sampling.top_k = (int)d->top_k;
  if (d->given & WN_DECLARED_REPETITION_PENALTY) o->repetition_penalty = d->repetition_penalty;
}

wn_status wn_prompt_encode(wn_context *ctx, const wn_tokenizer *tok, const char *text, size_t bytes, int32_t **ids,
                           size_t *count) {
  WN_CHECK_CALL(WN_HANDLE(tok, TOKENIZER), WN_ARRAY(text, bytes), WN_POINTER(ids), WN_POINTER(count));
  const bool bos = wn_tokenizer_bos(tok) >= 0;
  if (!bos && bytes == 0) text = "\n", bytes = 1;
  return wn_tokenizer_encode(ctx, tok, text, bytes, bos, false, ids, count);
}

/* --- checks --- */

static wn_status generate_check_stops(wn_context *ctx, const wn_generate_options *o) {
  if (o->stop_string_count > 0 && !o->tok)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: stop strings need a tokenizer");
  for (int i = 0; i < o->stop_string_count; i++) {
    const char *stop = o->stop_strings[i];
    size_t bad;
    if (!stop || !*stop) return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: stop string %d is empty", i);
    if (!wn_utf8_check(stop, strlen(stop), &bad))
      return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: stop string %d is not UTF-8 at byte %zu", i, bad);
  }
  return WN_OK;
}

wn_status wn_generation_check(wn_context *ctx, const wn_model *model, const wn_generate_options *o) {
  const int64_t V = model->config.vocab_size;
  WN_TRY(WN_RESERVED_CHECK(ctx, wn_sampling, &o->sampling));
  if (!o->prompt && (!o->text || !o->tok))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: a prompt is needed: tokens, or a text and a tokenizer");
  if (o->prompt && o->prompt_count < 1) return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: the prompt has no tokens");
  if (o->max_tokens < 0 || o->max_tokens > INT32_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: max_tokens is %lld, expected 0 to 2147483647",
                   (long long)o->max_tokens);
  if (o->vocab_size < 0 || o->vocab_size > V)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: vocab_size is %d, the model has %lld entries", o->vocab_size,
                   (long long)V);
  if (o->constraint && (!o->tok || o->ignore_end))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: a constraint needs a tokenizer, and its end tokens (ignore_end)");
  if (o->control && !o->prompt)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: control tokens are marked in a prompt of tokens, not of text");
  if (o->draft_tokens < 0 || o->draft_tokens > WN_DRAFT_MAX || o->draft_text_count < 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: draft_tokens is %d, expected 0 to %d", o->draft_tokens,
                   WN_DRAFT_MAX);
  if (o->draft_model) {
    WN_CHECK_ARGUMENTS(ctx, WN_HANDLE_AS("options' draft_model", o->draft_model, MODEL));
    if (o->draft_model->config.vocab_size != V || o->draft_model->config.encoder.layers > 0)
      return wn_fail(ctx, WN_ERR_ARGUMENT,
                     "generate: the draft model has a vocabulary of %lld and %lld layers of an encoder, expected %lld "
                     "and none",
                     (long long)o->draft_model->config.vocab_size, (long long)o->draft_model->config.encoder.layers,
                     (long long)V);
  }
  WN_TRY(wn_penalties_check(ctx, o, V));
  return generate_check_stops(ctx, o);
}

/* --- text --- */

/* Appends the text that a token adds to what is held. */
static wn_status generate_add_text(struct wn_generation *g, int32_t id) {
  const char *text = NULL;
  size_t bytes = 0;
  if (id < g->vocabulary)
    WN_TRY(wn_text_stream_push(g->ctx, g->stream, id, &text, &bytes));
  else if (g->o->text_of)
    text = g->o->text_of(g->o->user, id, &bytes);
  return text ? wn_bytes_add(g->ctx, &g->held, text, bytes) : WN_OK;
}

/* *at: where the stop string begins that is complete first; of several with the same end the longest. */
static bool generate_find_stop(const struct wn_generation *g, size_t *at) {
  size_t first_end = SIZE_MAX;
  for (int i = 0; i < g->o->stop_string_count; i++) {
    const char *stop = g->o->stop_strings[i];
    const size_t n = strlen(stop);
    const char *found = g->held.count ? memmem(g->held.data, g->held.count, stop, n) : NULL;
    if (!found) continue;
    const size_t begin = (size_t)(found - g->held.data);
    if (begin + n > first_end || (begin + n == first_end && begin >= *at)) continue;
    first_end = begin + n;
    *at = begin;
  }
  return first_end != SIZE_MAX;
}

/* The length of the longest suffix of the held text with which a stop string begins. */
static size_t generate_stop_begun(const struct wn_generation *g) {
  size_t most = 0;
  for (int i = 0; i < g->o->stop_string_count; i++) {
    const char *stop = g->o->stop_strings[i];
    size_t n = strlen(stop) - 1;
    if (n > g->held.count) n = g->held.count;
    for (; n > most; n--)
      if (!memcmp(g->held.data + g->held.count - n, stop, n)) most = n;
  }
  return most;
}

/* Passes `bytes` of the held text to the callback. False: the callback wants no more. */
static bool generate_hand_out(struct wn_generation *g, wn_generate_piece *piece, size_t bytes) {
  piece->text = g->held.count ? g->held.data : "";
  piece->bytes = bytes;
  piece->held = g->held.count - bytes;
  if (g->o->piece && !g->o->piece(g->o->user, piece)) return false;
  g->held.count -= bytes;
  if (bytes && g->held.count) memmove(g->held.data, g->held.data + bytes, g->held.count);
  return true;
}

/* --- tokens --- */

static bool generate_is_end(const struct wn_generation *g, int32_t id) {
  for (int i = 0; i < g->o->stop_token_count; i++)
    if (g->o->stop_tokens[i] == id) return true;
  if (g->o->ignore_end) return false;
  return wn_declared_is_end(&g->session->model->declared, id) ||
         (g->o->tok && id < g->vocabulary && wn_tokenizer_is_end(g->o->tok, id));
}

/* Marks the prompt's control tokens, one run of neighbours at a time. */
static wn_status generate_mark_control(struct wn_generation *g) {
  const uint8_t *control = g->o->control;
  for (int64_t i = 0, end; control && i < g->prompt_count; i = end) {
    for (end = i + 1; end < g->prompt_count && control[end] == control[i];) end++;
    if (control[i]) WN_TRY(wn_session_mark_control(g->ctx, g->session, 0, g->session->position + i, end - i));
  }
  return WN_OK;
}

/* Before the prompt's first token. */
static wn_status generate_begin_prompt(struct wn_generation *g) {
  if (!g->o->inputs) return WN_OK;
  WN_TRY(wn_session_encode(g->ctx, g->session, g->o->inputs, NULL, g->o->input_count));
  return generate_mark_control(g); /* after the encoder's run, which forgets marks */
}

wn_status wn_generation_read_layer(struct wn_generation *g, bool *done) {
  struct wn_reading *r = &g->reading;
  *done = r->x || (!g->ended && !g->prompted && g->r->prompt_tokens == 0 && wn_session_reads_by_layer(g->session));
  if (!*done) return WN_OK;
  const double start = wn_seconds_now();
  if (!r->x) {
    r->feed = (struct wn_feed){.session = g->session,
                               .tokens = g->prompt,
                               .stride = g->prompt_count,
                               .T = g->prompt_count,
                               .logits = true,
                               .out = g->apart ? NULL : g->logits};
    WN_TRY(generate_begin_prompt(g));
    WN_TRY(wn_reading_begin(g->ctx, r));
  } else if (wn_context_cancelled(g->ctx)) {
    wn_reading_drop(r);
    g->r->end = WN_GENERATE_CANCELLED;
    wn_generation_finish(g);
    return WN_OK;
  }
  WN_TRY(wn_reading_layer(r));
  g->r->prompt_seconds += wn_seconds_now() - start;
  if (r->x) return WN_OK;
  g->r->prompt_tokens = g->prompt_count;
  g->prompted = true;
  if (g->o->max_tokens == 0) wn_generation_finish(g);
  return WN_OK;
}

static wn_status generate_feed_piece(struct wn_generation *g, struct wn_feed *feed) {
  struct wn_session *s = g->session;
  const int64_t done = g->r->prompt_tokens, left = g->prompt_count - done;
  if (done == 0) {
    wn_reading_drop(&g->reading); /* of steps alone, before these together with others */
    WN_TRY(generate_begin_prompt(g));
  }
  if (done == 0) WN_TRY(wn_session_make_room(s, left, NULL)); /* for all of it at once */
  const int64_t room = wn_session_place_after(s->position) - s->position;
  feed->tokens = g->prompt + done;
  feed->T = left < room ? left : room;
  feed->logits = feed->T == left;
  return WN_OK;
}

wn_status wn_generation_feed(struct wn_generation *g, int32_t id, int64_t room, struct wn_feed *feed) {
  g->id = id;
  *feed = (struct wn_feed){
      .session = g->session, .tokens = &g->id, .T = 1, .logits = true, .out = g->apart ? NULL : g->logits};
  if (g->prompted)
    wn_drafts_add(g, id, room, feed);
  else
    WN_TRY(generate_feed_piece(g, feed));
  WN_TRY(wn_session_check_tokens(g->ctx, g->session, feed->tokens, feed->T, 0));
  return wn_session_stretch(g->session, feed->T);
}

wn_status wn_generation_fed(struct wn_generation *g, const struct wn_feed *feed) {
  WN_TRY(feed->status);
  if (g->prompted) {
    g->r->unfed = -1;
    return WN_OK;
  }
  g->r->prompt_tokens += feed->T;
  g->prompted = g->r->prompt_tokens == g->prompt_count;
  if (!g->prompted || g->session->compressed) return WN_OK;
  if (g->o->tok && !wn_session_knows_request(g->session))
    WN_TRY(wn_session_repeat_with(g->ctx, g->session, g->o->tok, NULL));
  return wn_session_compress(g->ctx, g->session);
}

/* The backend that draws: for logits on the host one that computes there. */
static struct wn_exec generate_exec(wn_context *ctx, const struct wn_generation *g) {
  const struct wn_backend *backend = g->session->model->backend;
  if (!g->apart && !wn_backend_on_host(backend)) backend = wn_backend_ref();
  return (struct wn_exec){.ctx = ctx, .backend = backend, .threads = 1, .dtype = WN_F32};
}

wn_status wn_generation_before(struct wn_generation *g, bool *over) {
  const wn_generate_options *o = g->o;
  const int64_t V = g->session->model->config.vocab_size;
  g->from = g->apart ? g->session->logits : g->logits;
  struct wn_adjust adjust = {.V = V, .n = g->entries, .x = g->from, .y = g->logits};
  *over = false;
  if (o->constraint) {
    const uint8_t *allowed;
    int32_t count;
    WN_TRY(wn_constraint_next(g->ctx, o->constraint, g->entries, over, &allowed, &count));
    if (*over) {
      g->r->end = WN_GENERATE_EOS;
      return WN_OK;
    }
    WN_TRY(wn_penalties_allow(g, allowed, count, &adjust));
  }
  if (wn_penalties_adjust(g, &adjust)) {
    const struct wn_exec exec = generate_exec(g->ctx, g);
    WN_TRY(wn_op_adjust_forward(&exec, &adjust));
    g->from = g->logits;
  }
  if (o->logits) o->logits(o->user, g->r->tokens, g->logits, V);
  return WN_OK;
}

wn_status wn_generation_draw(wn_context *ctx, struct wn_generation *const *all, int64_t n) {
  const struct wn_exec exec = generate_exec(ctx, *all);
  const bool apart = (*all)->apart;
  struct wn_drawn drawn[WN_SAMPLE_ROWS];
  struct wn_sample by = {.rows = n, .drawn = apart ? (*all)->draws : drawn};
  for (int64_t i = 0; i < n; i++) {
    const struct wn_generation *g = all[i];
    by.row[i] = wn_sample_by(&g->o->sampling, g->from, g->entries, g->o->first_step + g->r->steps);
    by.row[i].log_probability = g->o->log_probabilities;
  }
  WN_TRY(wn_op_sample_forward(&exec, &by));
  if (apart) WN_TRY(wn_memory_read(ctx, exec.backend->memory, drawn, by.drawn, (size_t)n * sizeof *drawn));
  for (int64_t i = 0; i < n; i++) all[i]->drawn = drawn[i];
  return WN_OK;
}

wn_status wn_generation_drawn(wn_context *ctx, const struct wn_generation *g, int32_t *id) {
  const struct wn_model *model = g->session->model;
  const struct wn_drawn *drawn = &g->drawn;
  float bad = 0;
  if (drawn->bad == 1)
    WN_TRY(wn_memory_read(model->ctx, g->apart ? model->backend->memory : &wn_host_memory, &bad, g->from + drawn->token,
                          sizeof bad));
  *id = drawn->token;
  if (drawn->bad == 1 && !g->o->logits) /* no callback changed it, so the model computed it */
    return wn_fail(ctx, WN_ERR_DIVERGED, "the model's logit %lld is %g after %lld tokens", (long long)drawn->token,
                   wn_told(bad), (long long)wn_session_position(g->session));
  return wn_sample_check(ctx, drawn, g->entries, bad);
}

wn_status wn_generation_take(struct wn_generation *g, int32_t id, bool *feed) {
  const wn_generate_options *o = g->o;
  wn_generate_result *r = g->r;
  wn_generate_piece piece = {.index = r->tokens, .id = id};
  size_t out = 0;
  *feed = false;
  if (r->tokens >= o->max_tokens) return WN_OK; /* the last one could not be passed on */
  r->steps++;
  if (generate_is_end(g, id)) {
    r->end = WN_GENERATE_EOS;
    r->end_token = id;
    return WN_OK;
  }
  if (o->constraint) WN_TRY(wn_constraint_accept(g->ctx, o->constraint, id));
  if (o->log_probabilities) piece.log_probability = g->drawn.log_probability;
  if (g->counts) {
    WN_TRY(wn_session_counts(g->ctx, g->session, 0, g->counts, &piece.context, &piece.content));
    piece.counts = g->counts;
  }
  if (o->drawn) o->drawn[r->tokens] = id;
  WN_TRY(wn_penalties_take(g, id));
  wn_drafts_note(g, id);
  r->tokens++;
  r->unfed = id;
  if (g->stream) WN_TRY(generate_add_text(g, id));
  const bool stop = generate_find_stop(g, &out);
  if (!stop) out = g->held.count - generate_stop_begun(g);
  if (!generate_hand_out(g, &piece, out)) {
    r->end = WN_GENERATE_CANCELLED;
    g->held.count = 0;
  } else if (stop) {
    r->end = WN_GENERATE_STOP;
    g->held.count = 0;
  } else if (r->tokens == o->max_tokens) {
    r->end = WN_GENERATE_LENGTH;
  } else if (g->session->position == g->session->capacity) {
    r->end = WN_GENERATE_CONTEXT;
  } else {
    *feed = true;
  }
  return WN_OK;
}

/* The row of the token that was taken is ahead: draws the one after it. */
static wn_status generate_next(wn_context *ctx, struct wn_generation *g, int32_t *id, bool *feed) {
  bool over;
  g->r->unfed = -1;
  WN_TRY(wn_session_ahead_take(g->session));
  if (!g->apart) WN_TRY(wn_session_copy_logits(g->session->model, g->session->logits, 1, g->logits));
  WN_TRY(wn_generation_before(g, &over));
  if (over) return WN_OK;
  WN_TRY(wn_generation_draw(ctx, &g, 1));
  WN_TRY(wn_generation_drawn(ctx, g, id));
  return wn_generation_take(g, *id, feed);
}

wn_status wn_generation_follow(wn_context *ctx, struct wn_generation *g, int32_t *id, bool *feed) {
  if (!g->drafts) return WN_OK;
  while (*feed && wn_drafts_next(g, *id)) {
    *feed = false;
    WN_TRY(generate_next(ctx, g, id, feed));
  }
  return wn_drafts_end(g);
}

void wn_generation_finish(struct wn_generation *g) {
  g->ended = true;
  (void)wn_session_ahead_drop(g->session); /* a failure leaves the session broken */
  if (g->held.count > 0 && !generate_hand_out(g, &(wn_generate_piece){.index = g->r->tokens, .id = -1}, g->held.count))
    g->r->end = WN_GENERATE_CANCELLED;
  g->held.count = 0;
}

/* --- a generation --- */

static wn_status generate_open(struct wn_generation *g) {
  const wn_generate_options *o = g->o;
  const int64_t V = g->session->model->config.vocab_size;
  g->vocabulary = o->tok ? wn_tokenizer_vocab_size(o->tok) : 0;
  g->entries = o->vocab_size ? o->vocab_size : o->tok && g->vocabulary < V ? g->vocabulary : (int32_t)V;
  const struct wn_model *model = g->session->model;
  g->apart = !model->backend->memory->host && model->dtype == WN_F32 &&
             !o->logits; /* a callback needs the logits on the host */
  if (!g->apart) {
    WN_TRY(WN_ALLOC(g->ctx, "logits", V, &g->logits));
  }
  if (o->counts) {
    const wn_model_config *c = &g->session->model->config;
    WN_TRY(WN_ALLOC(g->ctx, "counts", c->layers * c->heads, &g->counts));
  }
  WN_TRY(wn_penalties_open(g));
  WN_TRY(wn_drafts_open(g));
  if (!o->tok) return WN_OK;
  g->held = (struct wn_bytes){.capacity = HELD_BYTES};
  WN_TRY(WN_ALLOC(g->ctx, "text held back", HELD_BYTES, &g->held.data));
  WN_TRY(wn_text_stream_create(g->ctx, o->tok, &g->stream));
  for (int64_t i = 0; i < o->text_before_count; i++) {
    const char *text;
    size_t bytes;
    WN_TRY(wn_text_stream_push(g->ctx, g->stream, o->text_before[i], &text, &bytes));
  }
  return WN_OK;
}

static void generate_close(struct wn_generation *g) {
  wn_reading_drop(&g->reading);
  wn_text_stream_destroy(g->stream);
  wn_bytes_clear(&g->held);
  wn_tokens_free(g->encoded);
  wn_free(g->counts);
  wn_penalties_close(g);
  wn_drafts_close(g);
  wn_free(g);
}

void wn_generation_destroy(wn_generation *g) {
  WN_CHECK_OR(, WN_HANDLE_AS("generation", g, GENERATION));
  generate_close(g);
}

/* Checks that the session was made with what the options need. */
static wn_status generate_check_session(wn_context *ctx, const struct wn_session *session,
                                        const wn_generate_options *o) {
  if (session->B != 1)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "generate: a session of %lld sequences, expected one",
                   (long long)session->B);
  if (o->counts && !session->counts)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "generate: counts are asked for, the session was made without them");
  return WN_OK;
}

wn_status wn_generation_prompt(wn_context *ctx, const wn_generate_options *o, const int32_t **prompt,
                               int64_t *prompt_count, int32_t **encoded) {
  size_t count = 0;
  *prompt = o->prompt;
  *prompt_count = o->prompt_count;
  if (o->prompt) return WN_OK;
  WN_TRY(wn_prompt_encode(ctx, o->tok, o->text, o->bytes, encoded, &count));
  *prompt = *encoded;
  *prompt_count = (int64_t)count;
  return count > 0 ? WN_OK : wn_fail(ctx, WN_ERR_ARGUMENT, "generate: the prompt has no tokens");
}

wn_status wn_generation_create(wn_context *ctx, wn_session *session, const wn_generate_options *options,
                               wn_generation **out) {
  WN_CHECK_WORK(WN_HANDLE(session, SESSION), WN_POINTER(out));
  wn_status status;
  *out = NULL;
  struct wn_generation *g;
  WN_TRY(WN_ALLOC(ctx, "a generation", 1, &g));
  g->ctx = ctx;
  g->session = session;
  g->o = &g->own;
  g->r = &g->result;
  g->result = (wn_generate_result){.end_token = -1, .unfed = -1};
  WN_TRY_GOTO(WN_OPTIONS_READ(ctx, wn_generate_options, options, &g->own), fail);
  WN_TRY_GOTO(wn_generation_check(ctx, session->model, &g->own), fail);
  WN_TRY_GOTO(generate_check_session(ctx, session, &g->own), fail);
  WN_TRY_GOTO(wn_generation_prompt(ctx, &g->own, &g->prompt, &g->prompt_count, &g->encoded), fail);
  WN_TRY_GOTO(generate_open(g), fail);
  WN_TRY_GOTO(generate_mark_control(g), fail);
  if (g->own.constraint) wn_constraint_reset(g->own.constraint);
  wn_handle_mark(g, WN_HANDLE_GENERATION);
  *out = g;
  return WN_OK;
fail:
  generate_close(g);
  return status;
}

const wn_generate_result *wn_generation_result(const wn_generation *g) {
  WN_CHECK_OR(NULL, WN_HANDLE_AS("generation", g, GENERATION));
  return &g->result;
}
