/* For tests of the server: a server with a small model over bytes, and raw requests. */
#ifndef WN_TESTS_PLACE_H
#define WN_TESTS_PLACE_H

#include "model/models.h"

#include <jansson.h>
#include <pthread.h>
#include <time.h>

#include "report/ask.h"
#include "winnow/generate.h"
#include "winnow/score.h"
#include "winnow/serve.h"

enum { V = 256, CONTEXT = 200 };

struct place {
  wn_context *ctx, *own; /* ctx: the server's; own: the test's */
  wn_model *model, *same;
  wn_tokenizer *tok;
  wn_server *server;
  int port;
};

static SUPPORT_UNUSED wn_model *place_model(wn_context *ctx, int64_t vocabulary, int64_t context) {
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = vocabulary;
  c.context = context;
  return model_of(ctx, &c, WN_F32);
}

static SUPPORT_UNUSED wn_model *bytes_model(wn_context *ctx, int64_t context) {
  return place_model(ctx, V, context);
}

static SUPPORT_UNUSED void open_place_with(struct place *p, const char *tokenizer, int64_t context,
                                           const wn_server_options *options) {
  wn_server_options o = options ? *options : (wn_server_options){0};
  o.size = sizeof o;
  p->ctx = context_of("cpu", 1);
  p->own = context_of("cpu", 1);
  OK(p->ctx, wn_tokenizer_load(p->ctx, tokenizer, &p->tok));
  p->model = place_model(p->ctx, wn_tokenizer_vocab_size(p->tok), context);
  p->same = place_model(p->own, wn_tokenizer_vocab_size(p->tok), context);
  OK(p->ctx, wn_server_start(p->ctx, p->model, p->tok, &o, &p->server));
  p->port = wn_server_port(p->server);
}

static SUPPORT_UNUSED void open_place_of(struct place *p, int64_t context, const wn_server_options *options) {
  open_place_with(p, "bytes", context, options);
}

static SUPPORT_UNUSED void open_place(struct place *p, const wn_server_options *options) {
  open_place_of(p, CONTEXT, options);
}

/* A server whose tokenizer has this chat template, or these by name. */
static SUPPORT_UNUSED void open_chat_of(struct place *p, json_t *template, const wn_server_options *options) {
  json_t *config =
      json_pack("{s:s, s:s, s:o}", "bos_token", "<|im_start|>", "eos_token", "<|im_end|>", "chat_template", template);
  char folder[512];
  make_folder(folder);
  assert_int_equal(symlink(WN_TEST_DIR "/golden/bpe/smollm.json", path_in(folder, "tokenizer.json")), 0);
  assert_int_equal(json_dump_file(config, path_in(folder, "tokenizer_config.json"), 0), 0);
  json_decref(config);
  open_place_with(p, folder, CONTEXT, options);
  remove_folder(folder);
}

static SUPPORT_UNUSED void open_chat(struct place *p, const char *template, const wn_server_options *options) {
  open_chat_of(p, json_string(template), options);
}

static SUPPORT_UNUSED void close_place(struct place *p) {
  wn_server_stop(p->server);
  wn_tokenizer_destroy(p->tok);
  wn_model_destroy(p->model);
  wn_model_destroy(p->same);
  wn_context_destroy(p->ctx);
  wn_context_destroy(p->own);
}

/* A request as text, freed by the caller. HTTP/1.0, so that the answer's body is not chunked. */
static SUPPORT_UNUSED char *request_of(const char *method, const char *path, const char *body, const char *more) {
  char *text = NULL;
  const int n = asprintf(&text, "%s %s HTTP/1.0\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", method, path,
                         more ? more : "", strlen(body), body);
  assert_true(n > 0);
  return text;
}

static SUPPORT_UNUSED char *post(int port, const char *path, const char *body) {
  char *request = request_of("POST", path, body, NULL), *answer = ask(port, request);
  free(request);
  return answer;
}

static SUPPORT_UNUSED int status_of(const char *answer) {
  return atoi(answer + strlen("HTTP/1.x "));
}

static SUPPORT_UNUSED json_t *json_of(const char *answer) {
  json_t *j = json_loads(ask_body(answer), JSON_ALLOW_NUL, NULL);
  if (!j) fail_msg("not JSON: %.300s", answer);
  return j;
}

/* choices[i].text; the caller frees it. */
static SUPPORT_UNUSED char *text_of(const char *answer, int i) {
  if (status_of(answer) != 200) fail_msg("%.400s", answer);
  json_t *j = json_of(answer);
  json_t *text = json_object_get(json_array_get(json_object_get(j, "choices"), (size_t)i), "text");
  assert_true(json_is_string(text));
  char *out = strdup(json_string_value(text));
  json_decref(j);
  return out;
}

struct written {
  char text[4096];
  size_t bytes;
};
static SUPPORT_UNUSED bool on_piece(void *user, const wn_generate_piece *piece) {
  struct written *w = user;
  memcpy(w->text + w->bytes, piece->text, piece->bytes);
  w->text[w->bytes += piece->bytes] = 0;
  return true;
}

/* Generates the same text with the library. */
static SUPPORT_UNUSED void write_alone(const struct place *p, const char *prompt, int64_t tokens, double temperature,
                                       uint64_t seed, const wn_budgets *budgets, struct written *out) {
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  int32_t ids[4096];
  int64_t n = 0;
  for (const char *c = prompt; *c; c++) ids[n++] = (unsigned char)*c;
  o.prompt = o.text_before = ids;
  o.prompt_count = o.text_before_count = n;
  o.tok = p->tok;
  o.sampling = (wn_sampling){.temperature = temperature, .top_p = 1, .seed = seed};
  o.max_tokens = tokens;
  o.budgets = budgets;
  o.cache = WN_CACHE_FLOAT;
  o.piece = on_piece;
  o.user = out;
  out->bytes = 0;
  out->text[0] = 0;
  OK(p->own, wn_generate(p->own, p->same, &o, NULL));
}

static SUPPORT_UNUSED json_int_t slot_number(int port, const char *name) {
  char *answer = ask_for(port, "GET", "/slots");
  json_t *j = json_loads(strchr(answer, '{'), JSON_DISABLE_EOF_CHECK, NULL);
  const json_int_t n = json_integer_value(json_object_get(j, name));
  json_decref(j);
  free(answer);
  return n;
}

static SUPPORT_UNUSED void wait_for(int port, const char *name, json_int_t value) {
  for (int i = 0; i < 500; i++) {
    if (slot_number(port, name) == value) return;
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  fail_msg("%s is %lld, expected %lld", name, (long long)slot_number(port, name), (long long)value);
}

#endif
