/* A choice: one answer of a job. It scores or reads its prompt, generates, and leaves; the worker (worker.h) runs
 * it. */
#include "serve/choice.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/arrays.h"
#include "base/clock.h"
#include "base/error.h"
#include "decode/session.h"
#include "serve/embed.h"
#include "serve/models.h"
#include "serve/responses.h"
#include "text/utf8.h"
#include "text/vocab.h"
#include "winnow/score.h"

enum { SCORE_PIECE = 64, THOUGHTS_BEFORE = 16 };

static uint64_t choice_seed(const struct wn_serve_choice *c) {
  const struct wn_serve_request *r = &c->job->request;
  if (r->seed >= 0) return (uint64_t)r->seed + (uint64_t)c->index;
  return (uint64_t)wn_wall_nanoseconds() + (uint64_t)c->index * 7919u;
}

/* Scores a token that has been drawn. The session has not seen it yet and still has the logits before any change to
 * them. */
static wn_status choice_score(const struct wn_serve_model *m, struct wn_serve_choice *c, int32_t id) {
  int32_t top[WN_SERVE_TOP];
  double value, values[WN_SERVE_TOP];
  const int K = c->job->request.top;
  const wn_scores out = {.size = sizeof out,
                         .log_probability = &value,
                         .top_k = K,
                         .top = K ? top : NULL,
                         .top_log_probability = K ? values : NULL};
  if (!c->scores) return WN_OK;
  WN_TRY(wn_session_score_next(m->ctx, c->session, &id, 1, &out));
  wn_job_score(m, c, id, value, top, values, K);
  return WN_OK;
}

static bool choice_on_piece(void *user, const wn_generate_piece *piece) {
  struct wn_serve_choice *c = user;
  const struct wn_serve_model *m = c->model;
  if (piece->id >= 0) {
    c->tokens++;
    if (choice_score(m, c, piece->id) != WN_OK) c->job->out.failed = true;
    wn_trace_token(m, c, piece->id);
  }
  wn_job_say(m, c, piece->text, piece->bytes);
  c->thought_tokens += piece->id >= 0 && c->thoughts && wn_reasoning_inside(c->thoughts);
  c->held = wn_utf8_characters(piece->text + piece->bytes, piece->held);
  return true;
}

int64_t wn_choice_tokens(const struct wn_serve_worker *w, const struct wn_serve_choice *c) {
  const int64_t wanted = c->job->request.max_tokens, room = w->model.context - c->prompt->count;
  return wanted < 0 || wanted > room ? room : wanted;
}

static wn_status choice_generate(struct wn_serve_worker *w, struct wn_serve_choice *c, int64_t from) {
  const struct wn_serve_request *r = &c->job->request;
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  if (r->constraint) WN_TRY(wn_constraint_copy(w->model.ctx, r->constraint, &c->constraint));
  o.constraint = c->constraint;
  o.prompt = c->prompt->ids + from;
  o.prompt_count = c->prompt->count - from;
  o.tok = w->model.tok;
  o.sampling = (wn_sampling){.temperature = r->temperature,
                             .top_k = (int)r->top_k,
                             .top_p = r->top_p,
                             .seed = choice_seed(c),
                             .min_p = r->min_p};
  o.repetition_penalty = r->repetition_penalty;
  o.repeated = c->prompt->ids,
  o.repeated_count = c->prompt->count; /* penalties also count the part of the prompt that was not read again */
  o.presence_penalty = r->presence_penalty;
  o.frequency_penalty = r->frequency_penalty;
  o.biases = r->biases, o.bias_count = r->bias_count;
  o.draft_model = w->model.draft;
  o.draft_tokens = w->draft, o.draft_text = c->prompt->ids, o.draft_text_count = c->prompt->count;
  o.vocab_size = w->model.entries;
  o.max_tokens = wn_choice_tokens(w, c);
  o.stop_strings = r->stops;
  o.stop_string_count = r->stop_count;
  if (!r->chat || c->prompt->goes_on) o.text_before = c->prompt->ids, o.text_before_count = c->prompt->count;
  o.piece = choice_on_piece;
  o.user = c;
  c->state = WN_CHOICE_WRITES;
  return wn_generation_create(w->model.ctx, c->session, &o, &c->generation);
}

/* Sends the prompt's text before the answer's (echo). */
static wn_status choice_echo(struct wn_serve_worker *w, struct wn_serve_choice *c) {
  char *text;
  size_t bytes;
  struct wn_bytes clean = {0};
  const bool bos = c->prompt->ids[0] == wn_tokenizer_bos(w->model.tok);
  WN_TRY(wn_tokenizer_decode(w->model.ctx, w->model.tok, c->prompt->ids + bos, (size_t)c->prompt->count - bos, &text,
                             &bytes));
  wn_status status = wn_utf8_replace_bad(text, bytes, &clean);
  if (status == WN_OK) wn_job_say(&w->model, c, clean.data ? clean.data : "", clean.count);
  wn_bytes_clear(&clean);
  wn_text_free(text);
  return status;
}

/* Adds the score of a prompt's token, and its text if it is echoed. */
static wn_status choice_echo_token(struct wn_serve_worker *w, struct wn_serve_choice *c, int32_t id, double value,
                                   const int32_t *top, const double *values) {
  const char *text;
  size_t bytes;
  wn_job_score(&w->model, c, id, value, top, values, isnan(value) ? 0 : c->job->request.top);
  WN_TRY(wn_text_stream_push(w->model.ctx, c->echo, id, &text, &bytes));
  wn_job_say(&w->model, c, text, bytes);
  return WN_OK;
}

/* Reads a piece of the prompt and scores its tokens. */
static wn_status choice_score_piece(struct wn_serve_worker *w, struct wn_serve_choice *c) {
  double sums[SCORE_PIECE], values[SCORE_PIECE * WN_SERVE_TOP];
  int32_t top[SCORE_PIECE * WN_SERVE_TOP];
  const struct wn_serve_request *r = &c->job->request;
  const int64_t all = c->prompt->count - 1, left = all - c->scored, n = left < SCORE_PIECE ? left : SCORE_PIECE;
  const int32_t *ids = c->prompt->ids + c->scored;
  const wn_scores out = {.size = sizeof out,
                         .log_probability = sums,
                         .top_k = r->top,
                         .top = r->top ? top : NULL,
                         .top_log_probability = r->top ? values : NULL};
  if (c->scored == 0) {
    WN_TRY(wn_text_stream_create(w->model.ctx, w->model.tok, &c->echo));
    WN_TRY(choice_echo_token(w, c, ids[0], NAN, NULL, NULL));
  }
  if (n > 0) WN_TRY(wn_session_score(w->model.ctx, c->session, ids, ids + 1, n, &out));
  for (int64_t i = 0; i < n; i++)
    WN_TRY(choice_echo_token(w, c, ids[i + 1], sums[i], top + i * r->top, values + i * r->top));
  c->scored += n;
  return WN_OK;
}

/* --- known beginnings of the prompt --- */

void wn_worker_prefix_publish(struct wn_serve_worker *w) {
  pthread_mutex_lock(&w->lock);
  w->counts.prefix = w->prefix.counts;
  pthread_mutex_unlock(&w->lock);
}

uint64_t wn_worker_prefix_room(const struct wn_serve_worker *w) {
  return w->cache_memory == 0                      ? UINT64_MAX
         : w->counts.cache_bytes < w->cache_memory ? w->cache_memory - w->counts.cache_bytes
                                                   : 0;
}

/* Does another choice read the same prompt now? It will keep its state, which this one can use. */
static bool choice_waits_for_prompt(const struct wn_serve_choice *c) {
  const struct wn_serve_choice *first = c - c->index % c->job->request.n;
  return first != c &&
         (first->state == WN_CHOICE_BEGINS || (first->state == WN_CHOICE_WRITES && first->places.last > 0));
}

/* Begins to read the prompt, after what is known of it. */
static wn_status choice_read(struct wn_serve_worker *w, struct wn_serve_choice *c) {
  const struct wn_serve_prompt *p = c->prompt;
  c->cached = wn_prefix_find(&w->prefix, c->session, p->ids, p->count);
  c->places = wn_prefix_places(&w->prefix, c->session, p->ids, p->count);
  if (c->places.part <= c->cached) c->places.part = 0;
  if (c->places.last <= c->cached) c->places.last = 0;
  wn_worker_prefix_publish(w);
  return choice_generate(w, c, c->cached);
}

/* After a step: keeps the session's state if that is worth it. */
static void choice_keep(struct wn_serve_worker *w, struct wn_serve_choice *c) {
  const int64_t position = c->places.last > 0 ? wn_session_position(c->session) : -1;
  if (position != c->places.part && position != c->places.last) return;
  wn_prefix_keep(&w->prefix, w->model.ctx, c->session, c->prompt->ids, position, wn_worker_prefix_room(w));
  *(position == c->places.part ? &c->places.part : &c->places.last) = 0;
  wn_worker_prefix_publish(w);
}

/* The prompt's end may begin the thoughts. */
static wn_status choice_begin_thoughts(struct wn_serve_worker *w, struct wn_serve_choice *c) {
  const struct wn_serve_prompt *p = c->prompt;
  const int64_t n = p->count < THOUGHTS_BEFORE ? p->count : THOUGHTS_BEFORE;
  char *text;
  size_t bytes;
  WN_TRY(wn_tokenizer_decode(w->model.ctx, w->model.tok, p->ids + p->count - n, (size_t)n, &text, &bytes));
  c->thoughts = wn_reasoning_create(c->job->request.thoughts, text, bytes);
  wn_text_free(text);
  return c->thoughts ? WN_OK : wn_fail(w->model.ctx, WN_ERR_MEMORY, "out of memory: an answer");
}

wn_status wn_choice_begin(struct wn_serve_worker *w, struct wn_serve_choice *c) {
  const struct wn_serve_request *r = &c->job->request;
  if (r->embed.wanted) {
    c->state = WN_CHOICE_EMBEDS;
    return WN_OK;
  }
  c->scores = wn_job_new_scores(r);
  if (r->echo && r->scores) {
    c->state = WN_CHOICE_SCORES;
    return WN_OK;
  }
  if (r->echo) WN_TRY(choice_echo(w, c));
  if (r->calls) {
    const uint64_t seed = wn_hash_bytes((const char *)c->prompt->ids, (size_t)c->prompt->count * sizeof(int32_t));
    c->calls = wn_calls_create(r->calls, json_object_get(r->json, "tools"), seed + (uint64_t)c->index, r->calls_must,
                               c->prompt->goes_on);
    if (!c->calls) return wn_fail(w->model.ctx, WN_ERR_MEMORY, "out of memory: an answer");
  }
  if (r->thoughts) WN_TRY(choice_begin_thoughts(w, c));
  c->state = WN_CHOICE_BEGINS;
  return WN_OK;
}

/* What the tokens seen would take if none were dropped. */
static uint64_t choice_full_bytes(const struct wn_serve_worker *w, const struct wn_serve_choice *c) {
  const struct wn_serve_model *m = &w->model;
  const wn_session_options whole = {.size = sizeof whole,
                                    .sequences = 1,
                                    .capacity = c->prompt->count + wn_choice_tokens(w, c),
                                    .cache = m->cache,
                                    .tau = c->job->request.tau};
  size_t bytes;
  return wn_session_plan_bytes(m->ctx, m->model, &whole, c->seen, &bytes) == WN_OK ? bytes : c->held_bytes;
}

static void choice_count_kept(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  const wn_model_config *config = wn_model_config_get(m->model);
  const int64_t L = config->layers, Hkv = config->kv_heads;
  if (WN_ALLOC(NULL, "tokens kept", L, &c->kept) != WN_OK) c->job->out.failed = true;
  for (int64_t l = 0; c->kept && l < L; l++) c->kept[l] = (wn_session_held_tokens(c->session, l) + Hkv - 1) / Hkv;
}

/* How much is held of each message, and of the answer: tokens, counted by the heads and layers that hold them. */
static void choice_count_messages(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  const struct wn_chat_owners *owners = &c->prompt->owners;
  const wn_model_config *config = wn_model_config_get(m->model);
  const int64_t n = owners->count + 1, seen = wn_session_position(c->session);
  int32_t *heads;
  int64_t *tokens, *held;
  struct wn_arrays arrays = {0};
  const struct wn_array of[] = {WN_ARRAY_FOR(heads, "heads that hold a token", true, WN_DIMS(seen)),
                                WN_ARRAY_FOR(tokens, "tokens of messages", true, WN_DIMS(n)),
                                WN_ARRAY_FOR(held, "tokens held of messages", true, WN_DIMS(n))};
  if (c->index > 0 || !owners->of || seen == 0) return;
  c->messages = WN_ARRAYS_CREATE(m->ctx, &arrays, "what is held of messages", of) == WN_OK ? json_array() : NULL;
  for (int64_t l = 0; c->messages && l < config->layers; l++) {
    if (wn_session_held(m->ctx, c->session, 0, l, heads) != WN_OK) break;
    for (int64_t i = 0; i < seen; i++) {
      const int32_t owner = i < owners->tokens ? owners->of[i] : owners->count;
      tokens[owner] += l == 0, held[owner] += heads[i];
    }
  }
  for (int64_t i = 0; c->messages && i < n; i++) {
    json_t *one = i < n - 1 ? json_copy(json_array_get(c->prompt->told, (size_t)i))
                            : json_pack("{s:s, s:b}", "role", "assistant", "pinned", 0);
    const double kept = (double)held[i] / (double)(config->layers * config->kv_heads);
    json_object_set_new(one, "tokens", json_integer((json_int_t)tokens[i]));
    json_object_set_new(one, "kept", json_real(round(kept * 100) / 100));
    json_array_append_new(c->messages, one);
  }
  if (!c->messages) c->job->out.failed = true;
  wn_arrays_clear(&arrays);
}

void wn_choice_leave(struct wn_serve_worker *w, struct wn_serve_choice *c) {
  if (c->finish) wn_trace_step(&w->model, c);
  c->seen = wn_session_position(c->session);
  c->held_bytes = wn_session_held_bytes(c->session);
  choice_count_kept(&w->model, c);
  choice_count_messages(&w->model, c);
  c->full_bytes = choice_full_bytes(w, c);
  const wn_generate_result *r = c->generation ? wn_generation_result(c->generation) : NULL;
  if (r) c->drafted = r->drafted, c->accepted = r->accepted;
  wn_generation_destroy(c->generation);
  wn_constraint_destroy(c->constraint);
  wn_session_destroy(c->session);
  c->generation = NULL;
  c->constraint = NULL;
  c->session = NULL;
  c->state = WN_CHOICE_DONE;
  c->job->running--;
  pthread_mutex_lock(&w->lock);
  w->counts.running--;
  w->counts.cache_bytes -= c->cache_bytes + c->draft_bytes;
  w->counts.completion_tokens += (uint64_t)c->tokens;
  w->counts.drafted += (uint64_t)c->drafted, w->counts.accepted += (uint64_t)c->accepted;
  pthread_mutex_unlock(&w->lock);
}

/* Counts the times of the tokens of a step. All but the first of several came right after it. */
static void choice_time(struct wn_serve_worker *w, struct wn_serve_choice *c) {
  if (c->timed == c->tokens) return;
  const double now = wn_seconds_now(), before = c->timed_at;
  const bool first = c->job->first == 0;
  if (first) c->job->first = now - c->job->arrived;
  c->timed_at = now;
  pthread_mutex_lock(&w->lock);
  if (first) wn_histogram_add(&w->counts.times[WN_TIME_FIRST], c->job->first);
  for (double gap = now - before; c->timed < c->tokens; c->timed++, gap = 0)
    if (c->timed > 0) wn_histogram_add(&w->counts.times[WN_TIME_GAP], gap);
  pthread_mutex_unlock(&w->lock);
}

bool wn_choice_reads(const struct wn_serve_choice *c) {
  if (c->state == WN_CHOICE_BEGINS) return !choice_waits_for_prompt(c);
  return c->state == WN_CHOICE_SCORES || c->state == WN_CHOICE_EMBEDS ||
         (c->state == WN_CHOICE_WRITES && wn_session_position(c->session) < c->prompt->count);
}

wn_status wn_choice_before(struct wn_serve_worker *w, struct wn_serve_choice *c, bool *more) {
  *more = true;
  if (c->state == WN_CHOICE_EMBEDS) return wn_embed_step(&w->model, c, more);
  if (c->state == WN_CHOICE_SCORES) {
    WN_TRY(choice_score_piece(w, c));
    if (c->scored < c->prompt->count - 1) return WN_OK;
    if (c->job->request.max_tokens != 0) return choice_generate(w, c, c->scored);
    *more = false;
    c->finish = "length";
  }
  return c->state == WN_CHOICE_BEGINS ? choice_read(w, c) : WN_OK;
}

wn_status wn_choice_after(struct wn_serve_worker *w, struct wn_serve_choice *c, bool more) {
  choice_time(w, c);
  choice_keep(w, c);
  if (more) return WN_OK;
  const wn_generate_result *r = wn_generation_result(c->generation);
  c->finish = r->end == WN_GENERATE_EOS || r->end == WN_GENERATE_STOP ? "stop" : "length";
  /* The end token has no text, but clients expect a score for every token drawn. */
  return r->end == WN_GENERATE_EOS && !c->job->request.chat ? choice_score(&w->model, c, r->end_token) : WN_OK;
}

static void job_log(const struct wn_serve_job *job) {
  struct wn_access_job line = {.model = job->served->name,
                               .prompt = job->prompt_tokens,
                               .first = job->first,
                               .gone = job->gone,
                               .end = job->failed                   ? job->failed
                                      : job->gone && !job->finished ? "cancelled"
                                                                    : job->choices[0].finish};
  snprintf(line.id, sizeof line.id, "%s", job->id);
  for (int i = 0; i < job->count; i++) {
    line.written += job->choices[i].tokens;
    if (i % job->request.n == 0) line.cached += job->choices[i].cached; /* each prompt counts once */
  }
  wn_access_job(job->access, &line);
}

void wn_job_destroy(struct wn_serve_job *job) {
  if (!job) return;
  job_log(job);
  for (int i = 0; i < job->count && job->choices; i++) {
    struct wn_serve_choice *c = &job->choices[i];
    wn_generation_destroy(c->generation);
    wn_trace_destroy(c->trace);
    wn_text_stream_destroy(c->echo);
    wn_session_destroy(c->session);
    wn_bytes_clear(&c->text);
    json_decref(c->scores);
    json_decref(c->called);
    wn_calls_destroy(c->calls);
    wn_reasoning_destroy(c->thoughts);
    wn_bytes_clear(&c->thought);
    wn_respond_destroy(c->respond);
    wn_free(c->sums);
    wn_free(c->kept);
    json_decref(c->messages);
  }
  wn_free(job->choices);
  wn_serve_request_clear(&job->request);
  wn_free(job->out.data);
  wn_served_release(job->served);
  wn_free(job);
}
