/* What is decided by a request's head, before its body is read: whether it is clear where the request ends, which page
 * sends it, and whether it has the key. */
#include "serve/place.h"

#include "serve/http.h"

#define B "{\"prompt\":\"a\",\"max_tokens\":1}"
#define POST_OF(more) "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" more "\r\n"
#define CHUNKED_POST "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
#define HIDDEN "GET /slots HTTP/1.1\r\nHost: localhost\r\n\r\n"

static int served_in(const char *text) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, "HTTP/1.1 200")); at++) n++;
  return n;
}

/* Two programs that read such a head may see different requests: one of them would be smuggled past the other. */
static void test_framing(void **state) {
  (void)state;
  static const struct {
    const char *request;
    int status;
  } rows[] = {
      {POST_OF("Content-Length: 29\r\n") B, 200},
      {POST_OF("content-length:\t29\r\n") B, 200},
      {POST_OF("Transfer-Encoding: chunked\r\n") "1d\r\n" B "\r\n0\r\n\r\n", 200},
      {POST_OF("TRANSFER-ENCODING: Chunked\r\n") "1d\r\n" B "\r\n0\r\n\r\n", 200},
      {POST_OF("Content-Length: 0\r\nContent-Length: 40\r\n") HIDDEN, 400},
      {POST_OF("Content-Length: 29\r\nContent-Length: 29\r\n") B, 400},
      {POST_OF("Content-Length : 40\r\n") HIDDEN, 400},
      {POST_OF("Content-Length\t: 40\r\n") HIDDEN, 400},
      {POST_OF("Content-Length: 29, 29\r\n") B, 400},
      {POST_OF("Content-Length: +29\r\n") B, 400},
      {POST_OF("Content-Length: 45\r\nTransfer-Encoding: chunked\r\n") "0\r\n\r\n" HIDDEN, 400},
      {POST_OF("Transfer-Encoding: chunked\r\nContent-Length: 45\r\n") "0\r\n\r\n" HIDDEN, 400},
      {POST_OF("Transfer-Encoding: xchunked\r\n") HIDDEN, 400},
      {POST_OF("Transfer-Encoding: gzip, chunked\r\n") HIDDEN, 400},
      {POST_OF("Transfer-Encoding: identity\r\n") HIDDEN, 400},
      {POST_OF("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") "0\r\n\r\n" HIDDEN, 400},
      {POST_OF("Transfer-Encoding : chunked\r\n") "0\r\n\r\n" HIDDEN, 400},
      {POST_OF("Transfer-Encoding: chunked\r\n x\r\n") "0\r\n\r\n" HIDDEN, 400},
      {POST_OF("Content-Length: 4\r\n 0\r\n") HIDDEN, 400},
      {POST_OF("X: a\rContent-Length: 29\r\n") HIDDEN, 400},
      {POST_OF("X Y: a\r\nContent-Length: 29\r\n") B, 400},
      {POST_OF("Host: elsewhere\r\nContent-Length: 29\r\n") B, 400},
      {"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1d\r\n" B "\r\n0\r\n\r\n",
       400},
      {"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", 400},
      {POST_OF("Origin: http://localhost\r\nOrigin: http://localhost\r\nContent-Length: 29\r\n") B, 400},
      /* what a line between chunks that ends in a newline alone would hide */
      {CHUNKED_POST "1d;a\n" B "\r\n0\r\n\r\n" HIDDEN, 200},
      {CHUNKED_POST "1d\r\n" B "\r\n0\n\n" HIDDEN, 200},
  };
  struct place p;
  open_place(&p, NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *answer = ask(p.port, rows[i].request);
    if (status_of(answer) != rows[i].status || served_in(answer) != (rows[i].status == 200))
      fail_msg("row %zu, expected %d: %.300s", i, rows[i].status, answer);
    free(answer);
  }
  close_place(&p);
}

/* A page of another origin may not send requests, by whatever way a browser has. */
static void test_origins(void **state) {
  (void)state;
  static const struct {
    const char *host, *origin;
    int status, listed; /* listed: with two origins named */
  } rows[] = {
      {"localhost:8080", "http://localhost:8080", 200, 200},
      {"LOCALHOST:8080", "http://localhost:8080", 200, 200},
      {"127.0.0.1", "http://127.0.0.1", 200, 200},
      {"localhost:8080", "http://localhost:8081", 403, 403},
      {"localhost:8080", "https://localhost:8080", 403, 403},
      {"localhost", "http://evil.example", 403, 403},
      {"localhost", "null", 403, 403},
      {"localhost", "", 403, 403},
      {"localhost", "https://chat.example", 403, 200},
      {"localhost", "https://CHAT.example", 403, 200},
      {"localhost", "https://chat.example.evil", 403, 403},
      {"localhost", "https://chat", 403, 403},
      {"localhost", "http://other.example:3000", 403, 200},
      {"evil.example", "http://evil.example", 403, 403}, /* its name leads here */
  };
  for (int listed = 0; listed < 2; listed++) {
    struct place p;
    open_place(&p, &(wn_server_options){.origins = listed ? "https://chat.example,http://other.example:3000" : NULL});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      char request[500];
      snprintf(request, sizeof request,
               "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\nContent-Type: text/plain\r\n"
               "Connection: close\r\nContent-Length: 29\r\n\r\n" B,
               rows[i].host, rows[i].origin);
      char *answer = ask(p.port, request);
      const bool other = listed && rows[i].listed == 200 && rows[i].status == 403;
      if (status_of(answer) != (listed ? rows[i].listed : rows[i].status) ||
          other != (strstr(answer, "Access-Control-Allow-Origin: ") != NULL))
        fail_msg("row %zu: %.300s", i, answer);
      free(answer);
    }
    char *answer =
        ask(p.port, "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n"
                    "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-a\r\n"
                    "Connection: close\r\n\r\n");
    assert_int_equal(status_of(answer), listed ? 204 : 403);
    assert_true(!listed || (strstr(answer, "Access-Control-Allow-Methods: POST\r\n") &&
                            strstr(answer, "Access-Control-Allow-Headers: authorization,x-a\r\n") &&
                            strstr(answer, "Vary: Origin\r\n")));
    free(answer);
    answer = ask_for(p.port, "OPTIONS", "/v1/completions"); /* no page asks */
    assert_int_equal(status_of(answer), 405);
    free(answer);
    close_place(&p);
  }
}

/* On an address that is not this machine's own, a page may come from the address itself, but not from a name: it may be
 * one that somebody makes lead here. */
static void test_origins_elsewhere(void **state) {
  (void)state;
  static const struct {
    const char *host;
    int status;
  } rows[] = {{"192.0.2.7:8080", 200},
              {"[2001:db8::7]:8080", 200},
              {"localhost:8080", 200},
              {"evil.example", 403},
              {"192.0.2.7.evil.example", 403}};
  struct place p;
  open_place(&p, &(wn_server_options){.address = "0.0.0.0"});
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    for (int paged = 0; paged < 2; paged++) {
      char request[500], origin[100] = "";
      if (paged) snprintf(origin, sizeof origin, "Origin: http://%s\r\n", rows[i].host);
      snprintf(request, sizeof request, "GET /health HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", rows[i].host,
               origin);
      char *answer = ask(p.port, request);
      if (status_of(answer) != (paged ? rows[i].status : 200)) fail_msg("row %zu: %.200s", i, answer);
      free(answer);
    }
  close_place(&p);
}

enum { UNFINISHED = 40, LARGE = 2 << 20, SOME = 4000 };

/* Opens connections that send all but the last byte of a large body. */
static void hold_bodies(int port, int *s, const char *more) {
  char head[300], *body = malloc(LARGE);
  memset(body, ' ', LARGE);
  body[0] = '{';
  const int n =
      snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n",
               more, LARGE);
  for (int i = 0; i < UNFINISHED; i++) {
    s[i] = ask_connect(port);
    assert_int_equal(send(s[i], head, (size_t)n, MSG_NOSIGNAL), n);
    assert_int_equal(send(s[i], body, LARGE - 1, MSG_NOSIGNAL), LARGE - 1);
  }
  free(body);
}

/* The status of a request with a body of so many bytes. */
static int status_with(int port, size_t bytes, const char *more) {
  char *body = malloc(bytes + 1);
  memset(body, ' ', bytes);
  memcpy(body, B, strlen(B));
  body[bytes] = 0;
  char *request = request_of("POST", "/v1/completions", body, more), *answer = ask(port, request);
  const int status = status_of(answer);
  free(body), free(request), free(answer);
  return status;
}

/* Bodies of clients without the key take no memory. Those of clients with it keep out other large ones, but not small
 * requests. */
static void test_unfinished_bodies(void **state) {
  (void)state;
  static const char *const key = "Authorization: Bearer k\r\n";
  struct place p;
  int s[UNFINISHED];
  open_place(&p, &(wn_server_options){.api_key = "k"});
  hold_bodies(p.port, s, "");
  assert_int_equal(status_with(p.port, LARGE, key), 200);
  assert_int_equal(status_with(p.port, SOME, key), 200);
  for (int i = 0; i < UNFINISHED; i++) close(s[i]);
  hold_bodies(p.port, s, key);
  for (int i = 0; i < 500 && status_with(p.port, LARGE, key) != 503; i++) /* until they have been received */
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  assert_int_equal(status_with(p.port, LARGE, key), 503);
  assert_int_equal(status_with(p.port, SOME, key), 200);
  for (int i = 0; i < UNFINISHED; i++) close(s[i]);
  close_place(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_framing),
      cmocka_unit_test(test_origins),
      cmocka_unit_test(test_origins_elsewhere),
      cmocka_unit_test(test_unfinished_bodies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
