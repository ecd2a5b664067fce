/* Traces: with "winnow": {"trace": true} a stream has events between those of the text that say what the answer's
 * caches hold as it grows (docs/page.md has the fields). */

#include "base/alloc.h"
#include "base/error.h"
#include "decode/session.h"
#include "serve/job.h"

struct wn_serve_trace {
  wn_text_stream *stream; /* decodes the prompt and the answer */
  json_t *tokens;         /* texts since the last event */
  int64_t seen, room;     /* positions reported so far; capacity of the arrays */
  int32_t *held;          /* [room,L] how many key-value heads held each position, as reported */
  int32_t *now;           /* [room] the same now, for one layer */
};

void wn_trace_destroy(struct wn_serve_trace *t) {
  if (!t) return;
  wn_text_stream_destroy(t->stream);
  json_decref(t->tokens);
  wn_free(t->held);
  wn_free(t->now);
  wn_free(t);
}

static wn_status trace_no_memory(const struct wn_serve_model *m) {
  return wn_fail(m->ctx, WN_ERR_MEMORY, "out of memory: a trace");
}

/* Adds the text of a token; special tokens, which have none, by name. */
static wn_status trace_add_text(const struct wn_serve_model *m, struct wn_serve_trace *t, int32_t id, json_t *list) {
  const char *text;
  size_t bytes;
  WN_TRY(wn_text_stream_push(m->ctx, t->stream, id, &text, &bytes));
  if (bytes == 0 && wn_tokenizer_is_control(m->tok, id)) text = wn_tokenizer_token_name(m->tok, id, &bytes);
  if (json_array_append_new(list, json_stringn(bytes ? text : "", bytes)) == 0) return WN_OK;
  return trace_no_memory(m); /* a name that is not UTF-8 cannot occur: tokenizer files with one are refused */
}

static wn_status trace_begin_event(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  const wn_model_config *config = wn_model_config_get(m->model);
  const wn_budgets *in_force = wn_serve_budgets(m, &c->job->request), *b = in_force->layers > 0 ? in_force : NULL;
  json_t *prompt = json_array(), *special = json_array(), *budgets = b ? json_array() : json_null();
  wn_status status = WN_OK;
  for (int64_t i = 0; status == WN_OK && i < c->prompt->count; i++) {
    status = trace_add_text(m, c->trace, c->prompt->ids[i], prompt);
    if (wn_tokenizer_is_control(m->tok, c->prompt->ids[i])) json_array_append_new(special, json_integer(i));
  }
  for (int64_t l = 0; b && l < b->layers; l++) json_array_append_new(budgets, json_integer(b->tokens[l]));
  json_t *event =
      json_pack("{s:o, s:o, s:I, s:I, s:s?, s:o, s:I}", "prompt", prompt, "special", special, "layers",
                (json_int_t)config->layers, "heads", (json_int_t)config->kv_heads, "policy",
                b ? wn_policy_name(b->policy) : NULL, "budgets", budgets, "cache_bytes", (json_int_t)c->cache_bytes);
  if (status == WN_OK)
    wn_job_add_event(m, c->job, event);
  else
    json_decref(event);
  return status;
}

static wn_status trace_begin(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  if (c->trace) return WN_OK;
  WN_TRY(WN_ALLOC(m->ctx, "a trace", 1, &c->trace));
  if (!(c->trace->tokens = json_array())) return trace_no_memory(m);
  WN_TRY(wn_text_stream_create(m->ctx, m->tok, &c->trace->stream));
  return trace_begin_event(m, c);
}

static bool trace_is_wanted(const struct wn_serve_choice *c) {
  return c->job->request.trace && c->session && !c->job->out.failed;
}

void wn_trace_token(const struct wn_serve_model *m, struct wn_serve_choice *c, int32_t id) {
  if (!trace_is_wanted(c)) return;
  if (trace_begin(m, c) != WN_OK || trace_add_text(m, c->trace, id, c->trace->tokens) != WN_OK)
    c->job->out.failed = true;
}

/* Makes room for `seen` positions. */
static wn_status trace_grow(const struct wn_serve_model *m, struct wn_serve_trace *t, int64_t seen) {
  const int64_t L = wn_model_config_get(m->model)->layers;
  const int64_t room = 2 * t->room > seen ? 2 * t->room : seen;
  if (seen <= t->room) return WN_OK;
  WN_TRY(WN_RESIZE(m->ctx, "a trace", &t->held, t->seen * L, room * L));
  WN_TRY(WN_RESIZE(m->ctx, "a trace", &t->now, 0, room));
  t->room = room;
  return WN_OK;
}

/* Layer l, positions before `seen`: those that no head holds any more, and those that fewer heads hold. */
static json_t *trace_layer(struct wn_serve_trace *t, const wn_model_config *config, int64_t l, int64_t seen,
                           json_t **thinned) {
  json_t *dropped = json_array();
  *thinned = json_array();
  for (int64_t i = 0; i < seen; i++) {
    int32_t *told = &t->held[i * config->layers + l];
    const int32_t before = i < t->seen ? *told : (int32_t)config->kv_heads, now = t->now[i];
    *told = now;
    if (now == before) continue;
    if (now == 0)
      json_array_append_new(dropped, json_integer(i));
    else
      json_array_append_new(*thinned, json_pack("[I, i]", (json_int_t)i, (int)now));
  }
  return dropped;
}

static wn_status trace_event(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  struct wn_serve_trace *t = c->trace;
  const wn_model_config *config = wn_model_config_get(m->model);
  const int64_t seen = wn_session_position(c->session);
  const struct wn_kv_shape *shape = &c->session->caches[0].shape;
  const int64_t row = (int64_t)(wn_stored_bytes(shape->k_type, shape->dtype, config->head_size) +
                                wn_stored_bytes(shape->v_type, shape->dtype, config->head_size)),
                token = config->layers * config->kv_heads * row;
  if (seen == t->seen && json_array_size(t->tokens) == 0) return WN_OK;
  WN_TRY(trace_grow(m, t, seen));
  json_t *dropped = json_array(), *thinned = json_array();
  wn_status status = WN_OK;
  size_t gone = 0, fewer = 0;
  for (int64_t l = 0; l < config->layers && status == WN_OK; l++) {
    status = wn_session_held(m->ctx, c->session, 0, l, t->now);
    if (status != WN_OK) break;
    json_t *some, *none = trace_layer(t, config, l, seen, &some);
    gone += json_array_size(none);
    fewer += json_array_size(some);
    json_array_append_new(dropped, none);
    json_array_append_new(thinned, some);
  }
  t->seen = seen;
  json_t *event =
      json_pack("{s:I, s:O, s:I, s:I}", "seen", (json_int_t)seen, "tokens", t->tokens, "held_bytes",
                (json_int_t)wn_session_held_bytes(c->session), "full_cache_bytes", (json_int_t)(token * seen));
  if (gone) json_object_set(event, "dropped", dropped);
  if (fewer) json_object_set(event, "thinned", thinned);
  json_decref(dropped);
  json_decref(thinned);
  if (status == WN_OK)
    wn_job_add_event(m, c->job, event);
  else
    json_decref(event);
  json_decref(t->tokens);
  if (!(t->tokens = json_array())) return trace_no_memory(m);
  return status;
}

void wn_trace_step(const struct wn_serve_model *m, struct wn_serve_choice *c) {
  if (!trace_is_wanted(c)) return;
  if (trace_begin(m, c) != WN_OK || trace_event(m, c) != WN_OK) c->job->out.failed = true;
}
