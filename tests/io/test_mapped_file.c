/* A mapped file that is truncated while in use: a SIGBUS handler can find out which file it was. */
#include "support.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/file.h"

static const char *expected;

static void on_bus(int number, siginfo_t *info, void *where) {
  const char *path = wn_mapped_file(info->si_addr);
  (void)number, (void)where;
  _exit(path && !strcmp(path, expected) ? 7 : 8);
}

static void test_shortened(void **state) {
  (void)state;
  enum { BYTES = 1 << 20, FILES = 3 };
  wn_context *ctx = make_context();
  char folder[512], path[FILES][600];
  char *text = calloc(1, BYTES);
  struct wn_map map[FILES];
  make_folder(folder);
  for (int i = 0; i < FILES; i++) {
    snprintf(path[i], sizeof path[i], "%s/%d.bin", folder, i);
    put_file(path[i], text, BYTES);
    assert_ok(ctx, wn_map_open(ctx, path[i], &map[i]));
    assert_string_equal(wn_mapped_file(map[i].data + BYTES - 1), path[i]);
  }
  for (int i = 0; i < FILES; i++) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
      sigaction(SIGBUS, &action, NULL);
      expected = path[i];
      if (truncate(path[i], 4096) != 0) _exit(9);
      _exit(((const volatile uint8_t *)map[i].data)[BYTES - 1] != 0 ? 1 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 7);
  }
  for (int i = 0; i < FILES; i++) {
    const uint8_t *was = map[i].data;
    wn_map_close(&map[i]);
    assert_null(wn_mapped_file(was));
  }
  assert_null(wn_mapped_file(text));
  assert_null(wn_mapped_file(NULL));
  free(text);
  remove_folder(folder);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_shortened)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
