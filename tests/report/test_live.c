/* The live view over a socket: the page, points from where the last answer ended, thinning, refusals. */
#include "ask.h"

#include <jansson.h>

#include "winnow/serve.h"

static char *get(int port, const char *path) {
  return ask_for(port, "GET", path);
}

static json_t *log_of(int port, const char *after) {
  char path[100];
  snprintf(path, sizeof path, "/log?after=%s", after);
  char *text = get(port, path);
  const char *body = strstr(text, "\r\n\r\n");
  assert_non_null(body);
  assert_non_null(strstr(text, "200 OK"));
  json_t *j = json_loads(body + 4, 0, NULL);
  if (!j) fail_msg("no JSON: %.200s", body);
  free(text);
  return j;
}

static void test_live(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_live *live, *other;
  const wn_live_options options = {.size = sizeof options, .title = "a <run>"};
  assert_ok(ctx, wn_live_start(ctx, &options, &live));
  const int port = wn_live_port(live);
  assert_true(port > 0);
  const wn_live_options taken = {.size = sizeof taken, .port = port};
  assert_refused(ctx, wn_live_start(ctx, &taken, &other), WN_ERR_IO, "taken");
  const wn_live_options nowhere = {.size = sizeof nowhere, .address = "nowhere"};
  assert_refused(ctx, wn_live_start(ctx, &nowhere, &other), WN_ERR_ARGUMENT, "nowhere");

  char *page = get(port, "/");
  assert_non_null(strstr(page, "<h1>a &lt;run&gt;</h1>"));
  assert_non_null(strstr(page, "connect-src 'self'"));
  free(page);
  ask_expect(port, "GET /etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", "404");
  ask_expect(port, "POST /log HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", "405");
  ask_expect(port, "GET / HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n", "403");
  ask_expect(port, "GET / HTTP/1.1\r\nHost: localhost.elsewhere.example\r\nConnection: close\r\n\r\n", "403");

  json_t *j = log_of(port, "");
  assert_true(json_is_true(json_object_get(j, "reset")));
  assert_int_equal(json_array_size(json_object_get(j, "points")), 0);
  json_decref(j);
  for (int i = 1; i <= 5; i++) {
    const wn_train_progress p = {.step = i,
                                 .steps = 9,
                                 .loss = 1.5 / i,
                                 .tokens = 100 * (uint64_t)i,
                                 .seconds = i,
                                 .evaluated = i == 4,
                                 .val_loss = 7};
    wn_live_add(live, &p);
  }
  j = log_of(port, "0.3");
  assert_true(json_is_false(json_object_get(j, "reset")));
  const json_t *points = json_object_get(j, "points");
  assert_int_equal(json_array_size(points), 2);
  assert_int_equal(json_integer_value(json_object_get(json_array_get(points, 1), "step")), 5);
  assert_true(json_number_value(json_object_get(json_array_get(points, 1), "loss")) == 0.3);
  assert_true(json_number_value(json_object_get(json_array_get(points, 0), "val_loss")) == 7);
  assert_null(json_object_get(json_array_get(points, 1), "val_loss"));
  assert_string_equal(json_string_value(json_object_get(j, "next")), "0.5");
  assert_int_equal(json_integer_value(json_object_get(j, "steps")), 9);
  json_decref(j);
  static const char *const beyond[] = {"0.6", "0.-1", "9.1", "nonsense"};
  for (int i = 0; i < 4; i++) { /* invalid positions: everything again */
    j = log_of(port, beyond[i]);
    assert_true(json_is_true(json_object_get(j, "reset")));
    assert_int_equal(json_array_size(json_object_get(j, "points")), 5);
    json_decref(j);
  }
  /* A great many points are thinned; the newest and the validation losses stay. */
  for (int i = 6; i <= 70000; i++) {
    const wn_train_progress p = {.step = i, .steps = 70000, .loss = 1, .tokens = 100 * (uint64_t)i, .seconds = i};
    wn_live_add(live, &p);
  }
  wn_live_finish(live);
  j = log_of(port, "0.5");
  assert_true(json_is_true(json_object_get(j, "reset")) && json_is_true(json_object_get(j, "done")));
  points = json_object_get(j, "points");
  const size_t n = json_array_size(points);
  assert_true(n > 30000 && n < 40000);
  assert_int_equal(json_integer_value(json_object_get(json_array_get(points, n - 1), "step")), 70000);
  bool validation = false;
  for (size_t i = 0; i < n; i++) validation |= json_object_get(json_array_get(points, i), "val_loss") != NULL;
  assert_true(validation);
  json_decref(j);
  wn_live_stop(live);
  wn_live_stop(NULL);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_live)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
