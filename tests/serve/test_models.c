/* Several models: requests choose by name, get the same bits as alone, and wait while theirs is loaded; the least
 * recently used leaves, but not while it has requests; what cannot be loaded fails for its requests alone. */
#include "serve/place.h"
#include "policies.h"

#include <stdatomic.h>

enum { MODELS = 3, THREADS = 6, LONG = 4000 };

/* Three models with the same weights: "plain", "kept" with budgets, "broken" which cannot be loaded. */
struct several {
  wn_context *ctx, *own;
  wn_server *server;
  struct place alone; /* for write_alone */
  int port;
  pthread_mutex_t lock;
  pthread_cond_t news;
  bool gate;         /* closed: loads wait */
  int loads[MODELS]; /* begun */
};

static wn_status on_load(void *user, int i, wn_context **ctx, wn_model **model, wn_tokenizer **tok,
                         wn_budgets *budgets) {
  struct several *s = user;
  pthread_mutex_lock(&s->lock);
  s->loads[i]++;
  pthread_cond_broadcast(&s->news);
  while (s->gate) pthread_cond_wait(&s->news, &s->lock);
  pthread_mutex_unlock(&s->lock);
  *ctx = context_of("cpu", 1);
  if (i == 2) return wn_tokenizer_load(*ctx, "/nowhere", tok);
  OK(*ctx, wn_tokenizer_load(*ctx, "bytes", tok));
  *model = bytes_model(*ctx, LONG);
  budgets->cache = WN_CACHE_FLOAT;
  if (i == 0) return WN_OK;
  assert_int_equal(wn_policy_find(NULL, "h2o", &budgets->policy), WN_OK);
  return wn_budgets_parse(*ctx, wn_model_config_get(*model), "9", budgets);
}

static void set_gate(struct several *s, bool closed) {
  pthread_mutex_lock(&s->lock);
  s->gate = closed;
  pthread_cond_broadcast(&s->news);
  pthread_mutex_unlock(&s->lock);
}

static void wait_for_load(struct several *s, int i, int count) {
  pthread_mutex_lock(&s->lock);
  while (s->loads[i] < count) pthread_cond_wait(&s->news, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

static uint64_t model_bytes(const wn_model *model) {
  uint64_t bytes = 0;
  wn_tensor_info info;
  for (int i = 0; i < wn_model_tensor_count(model); i++) {
    assert_int_equal(wn_model_tensor_info(model, i, &info), WN_OK);
    bytes += info.bytes;
  }
  return bytes;
}

/* `fit`: of how many models the memory holds the weights; 0: no limit. told: the server knows what each takes. */
static void open_several(struct several *s, double fit, bool told, const wn_server_options *options) {
  static const char *const names[] = {"plain", "kept", "broken"};
  *s = (struct several){.ctx = context_of("cpu", 1), .own = context_of("cpu", 1)};
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->news, NULL);
  s->alone.own = s->own;
  s->alone.same = bytes_model(s->own, LONG);
  OK(s->own, wn_tokenizer_load(s->own, "bytes", &s->alone.tok));
  wn_server_options o = options ? *options : (wn_server_options){0};
  o.size = sizeof o;
  const uint64_t bytes = model_bytes(s->alone.same), all[] = {bytes, bytes, bytes};
  const wn_server_models m = {.size = sizeof m,
                              .count = MODELS,
                              .names = names,
                              .bytes = told ? all : NULL,
                              .load = on_load,
                              .user = s,
                              .memory = (uint64_t)(fit * (double)bytes)};
  OK(s->ctx, wn_server_start_models(s->ctx, &m, &o, &s->server));
  s->port = wn_server_port(s->server);
}

static void close_several(struct several *s) {
  wn_server_stop(s->server);
  wn_tokenizer_destroy(s->alone.tok);
  wn_model_destroy(s->alone.same);
  wn_context_destroy(s->ctx);
  wn_context_destroy(s->own);
  pthread_cond_destroy(&s->news);
  pthread_mutex_destroy(&s->lock);
}

/* status.value of a model in /v1/models; *is: whether status has `flag`. */
static void status_in(int port, int i, char out[20], const char *flag, bool *is) {
  char *answer = ask_for(port, "GET", "/v1/models");
  json_t *j = json_of(answer);
  const json_t *status = json_object_get(json_array_get(json_object_get(j, "data"), (size_t)i), "status");
  snprintf(out, 20, "%s", json_string_value(json_object_get(status, "value")));
  if (flag) *is = json_is_true(json_object_get(status, flag));
  json_decref(j);
  free(answer);
}

static void expect_status(int port, int i, const char *expected) {
  char found[20];
  for (int k = 0; k < 500; k++) {
    status_in(port, i, found, NULL, NULL);
    if (!strcmp(found, expected)) return;
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  fail_msg("model %d is %s, expected %s", i, found, expected);
}

static void wait_until_leaving(int port, int i) {
  char value[20];
  bool leaving = false;
  for (int k = 0; k < 500 && !leaving; k++) {
    status_in(port, i, value, "leaving", &leaving);
    if (!leaving) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  assert_true(leaving && !strcmp(value, "loaded"));
}

/* Sends a request and does not wait. */
static int begin(int port, const char *body) {
  char *request = request_of("POST", "/v1/completions", body, NULL);
  const int s = ask_connect(port);
  assert_int_equal(send(s, request, strlen(request), MSG_NOSIGNAL), strlen(request));
  free(request);
  return s;
}

static char *body_of(const char *model, int number) {
  char *body;
  assert_true(
      asprintf(&body,
               "{\"model\":\"%s\",\"prompt\":\"The water %d\",\"max_tokens\":40,\"temperature\":0.9,\"seed\":%d}",
               model, number, number) > 0);
  return body;
}

static void write_as(const struct several *s, const char *model, int number, struct written *out) {
  char prompt[40];
  wn_budgets budgets;
  budgets_init(&budgets);
  const bool kept = !strcmp(model, "kept");
  if (kept) assert_int_equal(wn_policy_find(NULL, "h2o", &budgets.policy), WN_OK);
  if (kept) OK(s->own, wn_budgets_parse(s->own, wn_model_config_get(s->alone.same), "9", &budgets));
  snprintf(prompt, sizeof prompt, "The water %d", number);
  write_alone(&s->alone, prompt, 40, 0.9, (uint64_t)number, kept ? &budgets : NULL, out);
  wn_budgets_clear(&budgets);
}

static int loads_of(struct several *s, int i) {
  pthread_mutex_lock(&s->lock);
  const int n = s->loads[i];
  pthread_mutex_unlock(&s->lock);
  return n;
}

/* How many models are loaded at one moment. */
static int loaded_now(int port) {
  int n = 0;
  char *answer = ask_for(port, "GET", "/v1/models");
  for (const char *at = answer; (at = strstr(at, "\"value\":\"loaded\"")); at++) n++;
  free(answer);
  return n;
}

/* --- */

struct asker {
  int port, number;
  struct written expected[2];
  pthread_t thread;
  atomic_int *most; /* models that were loaded at the same time */
  int wrong;
};

static void *asker_run(void *user) {
  struct asker *a = user;
  for (int k = 0; k < 6; k++) {
    const int which = (k + a->number) % 2;
    char *body = body_of(which ? "kept" : "plain", a->number), *answer = post(a->port, "/v1/completions", body);
    char *text = status_of(answer) == 200 ? text_of(answer, 0) : strdup(answer);
    if (strcmp(text, a->expected[which].text) != 0) a->wrong++;
    const int loaded = loaded_now(a->port);
    if (loaded > atomic_load(a->most)) atomic_store(a->most, loaded);
    free(text), free(answer), free(body);
  }
  return NULL;
}

/* Both at once: every answer is the one that its model writes alone, with room for both and with room for one. */
static void test_same_bits(void **state) {
  (void)state;
  for (int room = 2; room > 0; room--) {
    struct several s;
    struct asker askers[THREADS];
    atomic_int most = 0;
    open_several(&s, room == 2 ? 0 : 1.5, true, &(wn_server_options){.slots = 4});
    for (int i = 0; i < THREADS; i++) {
      askers[i] = (struct asker){.port = s.port, .number = i, .most = &most};
      write_as(&s, "plain", i, &askers[i].expected[0]);
      write_as(&s, "kept", i, &askers[i].expected[1]);
      assert_string_not_equal(askers[i].expected[0].text, askers[i].expected[1].text);
    }
    for (int i = 0; i < THREADS; i++)
      assert_int_equal(pthread_create(&askers[i].thread, NULL, asker_run, &askers[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(askers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++) assert_int_equal(askers[i].wrong, 0);
    if (room == 2) {
      assert_true(loads_of(&s, 0) == 1 && loads_of(&s, 1) == 1);
      expect_status(s.port, 0, "loaded");
      expect_status(s.port, 1, "loaded");
    } else {
      assert_true(loads_of(&s, 0) + loads_of(&s, 1) > 2);
      assert_int_equal(atomic_load(&most), 1);
    }
    assert_int_equal(loads_of(&s, 2), 0);
    wait_for(s.port, "requests", 0);
    char *metrics = ask_for(s.port, "GET", "/metrics"); /* the counts of a model that has left stay */
    assert_non_null(strstr(metrics, "\nwinnow_requests_total{model=\"plain\"} 18\n"));
    assert_non_null(strstr(metrics, "\nwinnow_requests_total{model=\"kept\"} 18\n"));
    assert_non_null(strstr(metrics, "\nwinnow_e2e_request_latency_seconds_count{model=\"kept\"} 18\n"));
    free(metrics);
    close_several(&s);
  }
}

static void expect_answer(int port, const char *method, const char *path, const char *body, int status,
                          const char *text) {
  char *request = request_of(method, path, body, NULL), *answer = ask(port, request);
  if (status_of(answer) != status || !strstr(answer, text))
    fail_msg("%s %s: expected %d with %s, found %.400s", path, body, status, text, answer);
  free(request), free(answer);
}

static void test_names(void **state) {
  (void)state;
  struct several s;
  open_several(&s, 0, false, NULL);
  expect_status(s.port, 0, "unloaded");
  char *answer = post(s.port, "/v1/completions", "{\"model\":\"a\",\"prompt\":\"b\"}");
  assert_int_equal(status_of(answer), 404);
  assert_non_null(strstr(answer, "only \\\"plain\\\", \\\"kept\\\", \\\"broken\\\""));
  free(answer);
  expect_answer(s.port, "POST", "/v1/completions", "{\"model\":1,\"prompt\":\"b\"}", 400, "model: expected a text");
  expect_answer(s.port, "POST", "/v1/completions", "no JSON", 400, "not JSON");
  expect_answer(s.port, "GET", "/v1/models/plain2", "", 404, "only");
  expect_answer(s.port, "GET", "/info?model=x", "", 404, "only");
  assert_true(loads_of(&s, 0) == 0 && loads_of(&s, 1) == 0); /* nothing of this wants a model */
  expect_answer(s.port, "GET", "/info?model=kept", "", 200, "\"model\":\"kept\"");
  assert_true(loads_of(&s, 0) == 0 && loads_of(&s, 1) == 1);
  expect_answer(s.port, "GET", "/v1/models/kept", "", 200, "\"context\":4000,\"status\":{\"value\":\"loaded\"}");
  expect_answer(s.port, "GET", "/v1/models/plain", "", 200, "\"context\":null,\"status\":{\"value\":\"unloaded\"}");
  expect_answer(s.port, "GET", "/props", "", 200, "\"model_alias\":\"plain\""); /* the first where none is named */
  expect_answer(s.port, "POST", "/tokenize", "{\"model\":\"kept\",\"prompt\":\"ab\"}", 200, "[97,98]");
  expect_answer(s.port, "POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}", 200, "\"model\":\"plain\"");
  expect_answer(s.port, "POST", "/v1/completions", "{\"model\":null,\"prompt\":\"a\",\"max_tokens\":1}", 200,
                "\"model\":\"plain\"");
  expect_answer(s.port, "POST", "/v1/embeddings", "{\"model\":\"kept\",\"input\":\"a\"}", 200, "\"model\":\"kept\"");
  close_several(&s);
}

/* While one is loaded others are answered; a client leaves, and the next one gets its answer. */
static void test_loading(void **state) {
  (void)state;
  struct several s;
  struct written expected;
  open_several(&s, 0, false, &(wn_server_options){.queue = 2});
  write_as(&s, "kept", 7, &expected);
  free(post(s.port, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}"));
  set_gate(&s, true);
  char *body = body_of("kept", 7);
  const int gone = begin(s.port, body), stays = begin(s.port, body);
  wait_for_load(&s, 1, 1);
  expect_status(s.port, 1, "loading");
  expect_answer(s.port, "GET", "/health", "", 200, "ok");
  char *stream =
      post(s.port, "/v1/completions", "{\"model\":\"plain\",\"prompt\":\"a\",\"max_tokens\":100,\"stream\":true}");
  assert_non_null(strstr(stream, "data: [DONE]"));
  free(stream);
  char *third = post(s.port, "/v1/completions", body); /* the reader has seen both: there is no place left */
  assert_int_equal(status_of(third), 429);
  assert_non_null(strstr(third, "Retry-After: 1"));
  free(third);
  close(gone);
  set_gate(&s, false);
  char *answer = ask_read(stays), *text = text_of(answer, 0);
  assert_string_equal(text, expected.text);
  free(text), free(answer), free(body);
  wait_for(s.port, "requests", 0);
  expect_status(s.port, 1, "loaded");
  assert_int_equal(loads_of(&s, 1), 1);
  close_several(&s);
}

static void test_broken(void **state) {
  (void)state;
  struct several s;
  char status[20];
  bool failed;
  open_several(&s, 0, false, NULL);
  for (int i = 0; i < 3; i++)
    expect_answer(s.port, "POST", "/v1/completions", "{\"model\":\"broken\",\"prompt\":\"a\"}", 500,
                  "the model \\\"broken\\\" cannot be loaded");
  assert_int_equal(loads_of(&s, 2), 1); /* not again at once */
  status_in(s.port, 2, status, "failed", &failed);
  assert_true(!strcmp(status, "unloaded") && failed);
  expect_answer(s.port, "POST", "/v1/completions", "{\"model\":\"plain\",\"prompt\":\"a\",\"max_tokens\":1}", 200,
                "usage");
  close_several(&s);
  open_several(&s, 0.5, false, NULL); /* none fits; this is known only once it has been loaded */
  expect_answer(s.port, "POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}", 500, "cannot be loaded");
  status_in(s.port, 0, status, "failed", &failed);
  assert_true(!strcmp(status, "unloaded") && failed);
  close_several(&s);
}

/* A busy model leaves only when it has answered, and its new requests wait until it is back. */
static void test_busy(void **state) {
  (void)state;
  struct several s;
  open_several(&s, 1.5, true, &(wn_server_options){.slots = 4});
  const int first = begin(s.port, "{\"model\":\"plain\",\"prompt\":\"a\",\"max_tokens\":3000,\"n\":2,\"stream\":true}");
  wait_for(s.port, "running", 2);
  const int other = begin(s.port, "{\"model\":\"kept\",\"prompt\":\"a\",\"max_tokens\":1}");
  expect_status(s.port, 1, "loading");
  wait_until_leaving(s.port, 0); /* from now on its requests wait */
  const int again = begin(s.port, "{\"model\":\"plain\",\"prompt\":\"a\",\"max_tokens\":1}");
  assert_true(loads_of(&s, 0) == 1 && loads_of(&s, 1) == 0); /* the first is still being answered */
  char *answers[] = {ask_read(first), ask_read(other), ask_read(again)};
  assert_non_null(strstr(answers[0], "data: [DONE]"));
  assert_non_null(strstr(answers[1], "\"model\":\"kept\""));
  assert_non_null(strstr(answers[2], "\"model\":\"plain\""));
  for (int i = 0; i < 3; i++) free(answers[i]);
  assert_true(loads_of(&s, 0) == 2 && loads_of(&s, 1) == 1);
  close_several(&s);
}

static void *open_gate_soon(void *user) {
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  set_gate(user, false);
  return NULL;
}

/* The server is stopped during a load, with requests that wait for it. */
static void test_stop(void **state) {
  (void)state;
  struct several s;
  pthread_t opener;
  open_several(&s, 0, false, NULL);
  set_gate(&s, true);
  char *body = body_of("kept", 1);
  const int waits[] = {begin(s.port, body), begin(s.port, body)};
  free(body);
  wait_for_load(&s, 1, 1);
  assert_int_equal(pthread_create(&opener, NULL, open_gate_soon, &s), 0);
  close_several(&s);
  pthread_join(opener, NULL);
  for (int i = 0; i < 2; i++) {
    char *answer = ask_read(waits[i]);
    assert_true(!*answer || status_of(answer) == 503);
    free(answer);
  }
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_server *server;
  const wn_server_options o = {.size = sizeof o};
  static const char *const names[] = {"a", "b", "a"};
  wn_server_models m = {.size = sizeof m, .count = 3, .names = names, .load = on_load};
  assert_refused(ctx, wn_server_start_models(ctx, &m, &o, &server), WN_ERR_ARGUMENT, "two models have the name \"a\"");
  m.count = 0;
  assert_refused(ctx, wn_server_start_models(ctx, &m, &o, &server), WN_ERR_ARGUMENT, "0 models");
  m.count = 2, m.load = NULL;
  assert_refused(ctx, wn_server_start_models(ctx, &m, &o, &server), WN_ERR_ARGUMENT, "a function that loads them");
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_names),   cmocka_unit_test(test_same_bits),
                                     cmocka_unit_test(test_loading), cmocka_unit_test(test_broken),
                                     cmocka_unit_test(test_busy),    cmocka_unit_test(test_stop),
                                     cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
