/* HTTP for tests: sends text to a socket and reads the answer. */
#ifndef WN_TESTS_ASK_H
#define WN_TESTS_ASK_H

#include "support.h"

#include <arpa/inet.h>
#include <sys/socket.h>

static SUPPORT_UNUSED int ask_connect_at(const char *address, int port) {
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  inet_pton(AF_INET, address, &at.sin_addr);
  assert_int_equal(connect(s, (struct sockaddr *)&at, sizeof at), 0);
  return s;
}

static SUPPORT_UNUSED int ask_connect(int port) {
  return ask_connect_at("127.0.0.1", port);
}

/* Reads to the end and closes the socket. The caller frees the text. */
static SUPPORT_UNUSED char *ask_read(int s) {
  size_t n = 0, room = 1 << 16;
  char *out = malloc(room);
  for (ssize_t got; (got = read(s, out + n, room - n - 1)) > 0;) {
    n += (size_t)got;
    if (room - n < 2) out = realloc(out, room *= 2);
  }
  out[n] = 0;
  close(s);
  return out;
}

/* Sends one request. Returns the answer with its head. */
static SUPPORT_UNUSED char *ask(int port, const char *request) {
  const int s = ask_connect(port);
  assert_int_equal(write(s, request, strlen(request)), strlen(request));
  return ask_read(s);
}

static SUPPORT_UNUSED char *ask_for(int port, const char *method, const char *path) {
  char request[300];
  snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n\r\n", method, path,
           port);
  return ask(port, request);
}

static SUPPORT_UNUSED const char *ask_body(const char *answer) {
  const char *body = strstr(answer, "\r\n\r\n");
  assert_non_null(body);
  return body + 4;
}

/* The request must be answered with this status. */
static SUPPORT_UNUSED void ask_expect(int port, const char *request, const char *status) {
  char *text = ask(port, request);
  if (strncmp(text, "HTTP/1.1 ", 9) != 0 || strncmp(text + 9, status, strlen(status)) != 0)
    fail_msg("expected %s, found %.80s", status, text);
  free(text);
}

#endif
