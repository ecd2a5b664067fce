/* What the server does for its page: a traced stream reports the tokens that a session holds, and is otherwise the same
 * stream. The page needs no key, the requests that it makes do. */
#include "model/models.h"

#include <jansson.h>

#include "report/ask.h"
#include "winnow/generate.h"
#include "winnow/serve.h"
#include "policies.h"

enum { CONTEXT = 200, L = 2, HKV = 2 };

struct place {
  wn_context *ctx, *own; /* ctx: the server's; own: the test's */
  wn_model *model, *same;
  wn_tokenizer *tok;
  wn_server *server;
  int port;
};

static wn_model *small_model(wn_context *ctx, int64_t V) {
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = HKV, .qk_norm = true};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = V;
  c.context = CONTEXT;
  return model_of(ctx, &c, WN_F32);
}

static void open_place(struct place *p, const char *tokenizer, const char *key) {
  const wn_server_options o = {.size = sizeof o, .api_key = key};
  p->ctx = context_of("cpu", 1);
  p->own = context_of("cpu", 1);
  OK(p->ctx, wn_tokenizer_load(p->ctx, tokenizer, &p->tok));
  p->model = small_model(p->ctx, wn_tokenizer_vocab_size(p->tok));
  p->same = small_model(p->own, wn_tokenizer_vocab_size(p->tok));
  OK(p->ctx, wn_server_start(p->ctx, p->model, p->tok, &o, &p->server));
  p->port = wn_server_port(p->server);
}

static void close_place(struct place *p) {
  wn_server_stop(p->server);
  wn_tokenizer_destroy(p->tok);
  wn_model_destroy(p->model);
  wn_model_destroy(p->same);
  wn_context_destroy(p->ctx);
  wn_context_destroy(p->own);
}

static char *say(int port, const char *method, const char *path, const char *body, const char *more) {
  char *text = NULL;
  assert_true(asprintf(&text, "%s %s HTTP/1.0\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", method, path,
                       more ? more : "", strlen(body), body) > 0);
  char *answer = ask(port, text);
  free(text);
  return answer;
}

static int status_of(const char *answer) {
  return atoi(answer + strlen("HTTP/1.x "));
}

/* The next event of a stream; NULL: no more. */
static json_t *next_event(const char **at) {
  const char *line = strstr(*at, "data: {");
  if (!line) return NULL;
  *at = line + strlen("data: ");
  json_t *j = json_loads(*at, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
  assert_non_null(j);
  json_object_del(j, "id");
  json_object_del(j, "created");
  return j;
}

static int64_t number_of(const json_t *j, const char *name) {
  assert_true(json_is_integer(json_object_get(j, name)));
  return json_integer_value(json_object_get(j, name));
}

static void join(char *out, const json_t *texts) {
  size_t i;
  json_t *text;
  assert_true(json_is_array(texts));
  json_array_foreach(texts, i, text) strcat(out, json_string_value(text));
}

/* The tokens held according to the events, as a client adds them up. */
struct told {
  int32_t heads[L][CONTEXT];
  int64_t seen;
  char prompt[1024], text[4096];
  int begins, steps;
};

static void told_add(struct told *t, const json_t *w) {
  size_t l, i;
  json_t *list, *one;
  if (json_object_get(w, "prompt")) {
    join(t->prompt, json_object_get(w, "prompt"));
    assert_int_equal(number_of(w, "layers"), L);
    assert_int_equal(number_of(w, "heads"), HKV);
    t->begins++;
    return;
  }
  const int64_t seen = number_of(w, "seen");
  assert_true(t->begins == 1 && seen >= t->seen);
  for (int64_t p = t->seen; p < seen; p++)
    for (int k = 0; k < L; k++) t->heads[k][p] = HKV;
  t->seen = seen;
  t->steps++;
  join(t->text, json_object_get(w, "tokens"));
  json_array_foreach(json_object_get(w, "dropped"), l, list) {
    json_array_foreach(list, i, one) {
      assert_true(json_integer_value(one) < seen && t->heads[l][json_integer_value(one)] > 0);
      t->heads[l][json_integer_value(one)] = 0;
    }
  }
  json_array_foreach(json_object_get(w, "thinned"), l, list) {
    json_array_foreach(list, i, one) {
      int32_t *heads = &t->heads[l][json_integer_value(json_array_get(one, 0))];
      const int32_t now = (int32_t)json_integer_value(json_array_get(one, 1));
      assert_true(now > 0 && now < *heads);
      *heads = now;
    }
  }
}

#define REQUEST                                                                                                        \
  "{\"prompt\":\"The water of the well is deep\",\"max_tokens\":60,\"seed\":4,\"stream\":true,"                        \
  "\"stream_options\":{\"include_usage\":true},\"winnow\":{%s%s}}"

/* Without a budget, with one, and with one for every head. */
static void test_trace(void **state) {
  (void)state;
  static const char *const winnow[] = {NULL, "\"budgets\":\"9,14\",\"policy\":\"h2o\"",
                                       "\"budgets\":9,\"policy\":\"tova\",\"options\":\"per_kv_head=true\""};
  struct place p;
  open_place(&p, "bytes", NULL);
  for (int k = 0; k < 3; k++) {
    struct told told = {.seen = 0};
    char body[1024], with[4096] = "", *plain, *traced;
    json_t *event, *usage = NULL;
    snprintf(body, sizeof body, REQUEST, "\"trace\":true", winnow[k] ? "," : "");
    snprintf(body + strlen(body) - 2, sizeof body - strlen(body) + 2, "%s}}", winnow[k] ? winnow[k] : "");
    traced = say(p.port, "POST", "/v1/completions", body, NULL);
    snprintf(body, sizeof body, REQUEST, winnow[k] ? winnow[k] : "\"trace\":false", "");
    plain = say(p.port, "POST", "/v1/completions", body, NULL);
    const char *a = ask_body(traced), *b = ask_body(plain);
    while ((event = next_event(&a))) { /* without the trace's events it is the plain stream */
      json_t *w = json_object_get(event, "winnow");
      if (w) {
        told_add(&told, w);
        if (!json_object_get(w, "prompt"))
          assert_true(number_of(w, "held_bytes") <= number_of(w, "full_cache_bytes") * 2);
      } else {
        json_t *other = next_event(&b);
        assert_true(other && json_equal(event, other));
        json_decref(other);
        const char *text =
            json_string_value(json_object_get(json_array_get(json_object_get(event, "choices"), 0), "text"));
        if (text) strcat(with, text);
        if (json_object_get(event, "usage")) usage = json_deep_copy(json_object_get(event, "usage"));
      }
      json_decref(event);
    }
    assert_null(next_event(&b));
    assert_null(strstr(plain, "\"trace") ? plain : NULL);
    assert_string_equal(told.prompt, "The water of the well is deep");
    assert_true(!strncmp(with, told.text, strlen(told.text)) && strlen(told.text) + 3 >= strlen(with));
    assert_true(told.begins == 1 && told.steps > 30);
    /* A session that reads the same tokens. */
    const int64_t tokens = number_of(usage, "completion_tokens"), seen = 29 + tokens - (tokens == 60);
    assert_int_equal(told.seen, seen);
    wn_generate_options o;
    wn_generate_options_init(&o, sizeof o);
    wn_budgets budgets;
    wn_session *s;
    int32_t heads[CONTEXT], drawn[60];
    budgets_init(&budgets);
    if (k) assert_int_equal(wn_policy_find(NULL, k == 1 ? "h2o" : "tova", &budgets.policy), WN_OK);
    budgets.per_kv_head = k == 2;
    if (k) OK(p.own, wn_budgets_parse(p.own, wn_model_config_get(p.same), k == 1 ? "9,14" : "9", &budgets));
    OK(p.own,
       wn_session_create(p.own, p.same,
                         WN_OPTIONS(wn_session_options, .capacity = CONTEXT, .budgets = k ? &budgets : NULL), &s));
    o.text = "The water of the well is deep", o.bytes = 29;
    o.tok = p.tok, o.max_tokens = 60, o.drawn = drawn;
    o.sampling = (wn_sampling){.temperature = 1, .top_p = 1, .seed = 4};
    OK(p.own, wn_session_generate(p.own, s, &o, NULL));
    assert_int_equal(wn_session_position(s), seen);
    for (int l = 0; l < L; l++) {
      int kept = 0;
      OK(p.own, wn_session_held(p.own, s, 0, l, heads));
      for (int64_t i = 0; i < seen; i++) {
        assert_int_equal(heads[i], told.heads[l][i]);
        kept += heads[i];
      }
      assert_int_equal(kept, HKV * (k == 0 ? seen : k == 1 && l == 1 ? 14 : 9));
    }
    wn_session_destroy(s);
    wn_budgets_clear(&budgets);
    json_decref(usage);
    free(plain), free(traced);
  }
  close_place(&p);
}

static void test_refusals(void **state) {
  (void)state;
  static const char *const bodies[][2] = {
      {"{\"prompt\":\"a\",\"winnow\":{\"trace\":true}}", "winnow.trace: only in a stream"},
      {"{\"prompt\":\"a\",\"stream\":true,\"n\":2,\"winnow\":{\"trace\":true}}", "winnow.trace: only in a stream"},
      {"{\"prompt\":[\"a\",\"b\"],\"stream\":true,\"winnow\":{\"trace\":true}}", "winnow.trace: only in a stream"},
      {"{\"prompt\":\"a\",\"stream\":true,\"winnow\":{\"trace\":1}}", "winnow.trace: expected"},
      {"{\"prompt\":\"a\",\"stream\":true,\"winnow\":{\"trace\":true,\"policy\":\"h2o\"}}", "budgets are missing"},
  };
  struct place p;
  open_place(&p, "bytes", NULL);
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
    char *answer = say(p.port, "POST", "/v1/completions", bodies[i][0], NULL);
    if (status_of(answer) != 400 || !strstr(answer, bodies[i][1])) fail_msg("%s: %s", bodies[i][0], answer);
    free(answer);
  }
  close_place(&p);
}

/* Special tokens decode to no text: a trace and /tokenizer_info give their names. */
static void test_special(void **state) {
  (void)state;
  struct place p;
  open_place(&p, WN_TEST_DIR "/golden/bpe/llama3.json", NULL);
  char *answer = say(p.port, "POST", "/v1/completions",
                     "{\"prompt\":[1,2],\"max_tokens\":0,\"stream\":true,\"winnow\":{\"trace\":true}}", NULL);
  const char *at = ask_body(answer);
  json_t *event = next_event(&at), *w = json_object_get(event, "winnow");
  size_t bytes;
  const char *name = wn_tokenizer_token_name(p.tok, 1, &bytes);
  const char *found = json_string_value(json_array_get(json_object_get(w, "prompt"), 0));
  assert_non_null(found);
  assert_true(strlen(found) == bytes && !memcmp(found, name, bytes));
  assert_string_equal(json_string_value(json_array_get(json_object_get(w, "prompt"), 1)), "<|im_end|>");
  assert_int_equal(json_array_size(json_object_get(w, "special")), 2);
  json_decref(event);
  free(answer);
  answer = say(p.port, "GET", "/tokenizer_info", "", NULL);
  json_t *j = json_loads(ask_body(answer), 0, NULL);
  found = json_string_value(json_object_get(j, "bos_token"));
  assert_non_null(found);
  assert_true(strlen(found) == bytes && !memcmp(found, name, bytes));
  json_decref(j);
  free(answer);
  close_place(&p);
}

static void test_page(void **state) {
  (void)state;
  struct place p;
  open_place(&p, "bytes", "secret");
  char *page = say(p.port, "GET", "/", "", NULL);
  assert_int_equal(status_of(page), 200);
  assert_non_null(strstr(page, "Content-Security-Policy: default-src 'none'; script-src 'sha256-"));
  assert_null(strstr(page, "unsafe-inline"));
  assert_non_null(strstr(page, "text/html; charset=utf-8"));
  assert_null(strstr(page, "@SCRIPT@"));
  /* The page loads nothing from elsewhere and turns no text into HTML. */
  assert_null(strstr(page, "http://"));
  assert_null(strstr(page, "https://"));
  assert_null(strstr(page, "innerHTML"));
  free(page);
  char *answer = say(p.port, "GET", "/info", "", NULL);
  assert_int_equal(status_of(answer), 401);
  free(answer);
  answer = say(p.port, "GET", "/info", "", "Authorization: Bearer secret\r\n");
  assert_int_equal(status_of(answer), 200);
  json_t *j = json_loads(ask_body(answer), 0, NULL), *policies = json_object_get(j, "policies"), *policy;
  size_t i;
  assert_int_equal(number_of(j, "layers"), L);
  assert_int_equal(number_of(j, "context"), CONTEXT);
  assert_true(json_is_false(json_object_get(j, "chat")));
  assert_true(json_array_size(policies) >= 4);
  assert_true(json_is_null(json_object_get(j, "temperature"))); /* the model declares none */
  json_array_foreach(policies, i, policy) {
    wn_policy found;
    assert_int_equal(wn_policy_find(NULL, json_string_value(json_object_get(policy, "name")), &found), WN_OK);
    assert_false(wn_policy_at(found)->selective); /* none of them needs selective attention */
  }
  json_decref(j);
  free(answer);
  close_place(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_trace),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_special),
      cmocka_unit_test(test_page),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
