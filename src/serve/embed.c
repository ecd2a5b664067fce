/* Embeddings. Each text has a session of its own, which reads it piece by piece between the steps of others. The
 * embedding is the mean of its states, or the last one, divided by its Euclidean norm. */
#include "serve/embed.h"

#include "base/alloc.h"
#include "base/error.h"
#include "decode/embed.h"

static int64_t embed_width(const struct wn_serve_model *m) {
  return wn_model_config_get(m->model)->width;
}

/* --- the request --- */

static bool embed_read_field(const struct wn_serve_model *m, const char *key, const json_t *value,
                             struct wn_serve_request *r, struct wn_serve_error *error) {
  const char *text = json_string_value(value);
  struct wn_serve_embed *e = &r->embed;
  if (!strcmp(key, "input")) return wn_serve_prompts(m, "input", WN_SERVE_PROMPTS, value, r, error);
  if (!strcmp(key, "model") || !strcmp(key, "user"))
    return text || wn_serve_refuse(error, 400, key, "%s: expected a text", key);
  if (!strcmp(key, "encoding_format")) {
    e->base64 = text && !strcmp(text, "base64");
    return e->base64 || (text && !strcmp(text, "float")) ||
           wn_serve_refuse(error, 400, key, "encoding_format: expected \"float\" or \"base64\"");
  }
  if (!strcmp(key, "pooling")) {
    int pooling = 0;
    while (pooling < WN_POOLING_COUNT && (!text || strcmp(text, wn_pooling_name((wn_pooling)pooling)) != 0)) pooling++;
    e->pooling = (wn_pooling)pooling;
    return pooling < WN_POOLING_COUNT || wn_serve_refuse(error, 400, key, "pooling: expected \"mean\" or \"last\"");
  }
  if (!strcmp(key, "dimensions")) {
    e->dimensions = json_is_integer(value) ? json_integer_value(value) : 0;
    return (e->dimensions >= 1 && e->dimensions <= embed_width(m)) ||
           wn_serve_refuse(error, 400, key, "dimensions: expected a whole number from 1 to %lld",
                           (long long)embed_width(m));
  }
  return wn_serve_refuse(error, 400, key, "%.64s: this field is not known to /v1/embeddings", key);
}

bool wn_embed_request_read(const struct wn_serve_model *m, const char *body, size_t bytes, struct wn_serve_request *r,
                           struct wn_serve_error *error) {
  const char *key;
  json_t *value;
  *error = (struct wn_serve_error){0};
  *r = (struct wn_serve_request){.n = 1, .embed = {.wanted = true}};
  wn_budgets_init(&r->budgets, &wn_model_config_get(m->model)->attention);
  r->json = wn_serve_body(body, bytes, error);
  if (!r->json) return false;
  json_object_foreach(r->json, key, value) {
    if (!json_is_null(value) && !embed_read_field(m, key, value, r, error)) return false;
  }
  json_object_del(r->json, "input"); /* many times its text's bytes, and no longer needed */
  if (r->prompt_count == 0) return wn_serve_refuse(error, 400, "input", "input: missing");
  for (int i = 0; i < r->prompt_count; i++)
    if (r->prompts[i].count > m->context)
      return wn_serve_refuse(error, 400, "input", "input: text %d has %lld tokens, the context has %lld", i,
                             (long long)r->prompts[i].count, (long long)m->context);
  if (r->embed.dimensions == 0) r->embed.dimensions = embed_width(m);
  return true;
}

/* --- the work --- */

wn_status wn_embed_step(const struct wn_serve_model *m, struct wn_serve_choice *c, bool *more) {
  const int64_t C = embed_width(m);
  int64_t now;
  if (!c->sums) WN_TRY(WN_ALLOC(m->ctx, "an embedding", C, &c->sums));
  WN_TRY(wn_embed_piece(m->ctx, c->session, c->prompt->ids + c->scored, c->prompt->count - c->scored,
                        c->job->request.embed.pooling, c->sums, &now));
  c->scored += now;
  *more = c->scored < c->prompt->count;
  return WN_OK;
}

/* --- the answer --- */

/* Bytes as base64; NULL: out of memory. */
static json_t *embed_base64(const unsigned char *data, size_t bytes) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t n = (bytes + 2) / 3 * 4;
  char *out;
  if (WN_ALLOC(NULL, "base64", n + 1, &out) != WN_OK) return NULL;
  for (size_t i = 0, at = 0; i < bytes; i += 3, at += 4) {
    const unsigned a = data[i], b = i + 1 < bytes ? data[i + 1] : 0, c = i + 2 < bytes ? data[i + 2] : 0;
    out[at] = digits[a >> 2];
    out[at + 1] = digits[(a & 3) << 4 | b >> 4];
    out[at + 2] = (char)(i + 1 < bytes ? digits[(b & 15) << 2 | c >> 6] : '=');
    out[at + 3] = (char)(i + 2 < bytes ? digits[c & 63] : '=');
  }
  json_t *text = json_stringn(out, n);
  wn_free(out);
  return text;
}

/* [n] numbers as a list or as base64. winnow runs on little-endian machines only, and the API wants little-endian
 * floats. */
static json_t *embed_numbers(const float *x, int64_t n, bool base64) {
  if (base64) return embed_base64((const unsigned char *)x, (size_t)n * sizeof *x);
  json_t *list = json_array();
  for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real((double)x[i]));
  return list;
}

json_t *wn_embed_answer(const struct wn_serve_model *m, const struct wn_serve_job *job, struct wn_serve_error *error) {
  const struct wn_serve_embed *e = &job->request.embed;
  json_t *data = json_array();
  float *out = NULL;
  bool good = WN_ALLOC(NULL, "an embedding", e->dimensions, &out) == WN_OK;
  for (int i = 0; i < job->count && good; i++) {
    const struct wn_serve_choice *c = &job->choices[i];
    good = wn_embed_finish(c->sums, e->dimensions, c->prompt->count, e->pooling, false, out);
    if (good)
      json_array_append_new(data, json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", i, "embedding",
                                            embed_numbers(out, e->dimensions, e->base64)));
    else
      wn_serve_refuse(error, 500, "input", "input: the states of text %d are zero or not finite", i);
  }
  wn_free(out);
  if (!good) {
    json_decref(data);
    return NULL;
  }
  return json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", data, "model", m->name, "usage",
                   "prompt_tokens", (json_int_t)job->prompt_tokens, "total_tokens", (json_int_t)job->prompt_tokens);
}
