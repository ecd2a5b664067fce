/* Each call by which a writer touches the disk fails once: with EIO or a full disk, at open, mkdir, write, fsync,
 * rename, ftruncate and unlink, and where it opens, reads and maps its inputs. The error must be one line that names a
 * file; a reader must find the old files or the new ones, never a mixture; and the same call must succeed afterwards,
 * with the files that it writes without failures, so nothing is left in its way.
 *
 * WINNOW_TEST_ALL: every call of every writer; else a selection that differs between writers. */
#include "fault/writers.h"

enum { PLACES = 20 };

/* Harmless failures: the next writer removes what could not be removed. */
static bool may_be_ignored(const char *failed) {
  return !strncmp(failed, "unlink ", 7) || !strncmp(failed, "rmdir ", 6);
}

static void same_names(const struct writer *w, long at, const struct tree *want) {
  struct tree found;
  tree_take(&found, writers_root);
  for (int i = 0; i < found.count; i++)
    if (!tree_find(want, found.files[i].path))
      fail_msg("%s, call %ld (%s): afterwards there is %s", w->name, at, calls.failed, found.files[i].path);
  for (int i = 0; i < want->count; i++)
    if (!tree_find(&found, want->files[i].path))
      fail_msg("%s, call %ld (%s): afterwards there is no %s", w->name, at, calls.failed, want->files[i].path);
  tree_clear(&found);
}

static long tried;

static void fail_one(const struct writer *w, long at, int error, const struct tree *old, const struct tree *new) {
  char text[2048], again[2048], bad[400];
  tree_put(old, writers_root);
  calls_begin(writers_root);
  calls.read_too = true;
  calls.fail_at = at, calls.error = error;
  const wn_status status = writers_call(w->run, text, sizeof text);
  calls_end();
  tried++;
  if (!calls.failed[0]) return; /* this call was not reached: an earlier failure ended it */
  const int found = writers_generation(w, writers_root, old, new, bad, sizeof bad);
  if (!found) fail_msg("%s, call %ld (%s, %s): %s [%s]", w->name, at, calls.failed, strerror(error), bad, text);
  if (status == WN_OK) {
    if (!(found & 2))
      fail_msg("%s, call %ld (%s): accepted, but the files are the old ones", w->name, at, calls.failed);
    if (!may_be_ignored(calls.failed))
      fail_msg("%s, call %ld (%s, %s): nobody minds", w->name, at, calls.failed, strerror(error));
  } else if (!strstr(text, writers_root) || strchr(text, '\n')) {
    fail_msg("%s, call %ld (%s): the message names no file: %s", w->name, at, calls.failed, text);
  }
  if (writers_call(w->run, again, sizeof again) != WN_OK)
    fail_msg("%s, call %ld (%s): afterwards: %s [%s]", w->name, at, calls.failed, again, text);
  if (!(writers_generation(w, writers_root, old, new, bad, sizeof bad) & 2))
    fail_msg("%s, call %ld (%s): afterwards %s", w->name, at, calls.failed, bad);
  same_names(w, at, new);
}

static void test_each_call(void **state) {
  const int n = (int)(intptr_t)*state;
  const struct writer *w = &writers[n];
  static struct tree old, new;
  char error[2048];
  writers_begin(w, &old, &new);
  calls_begin(writers_root);
  calls.read_too = true;
  assert_int_equal(writers_call(w->run, error, sizeof error), WN_OK);
  const long all = calls.count, stride = getenv("WINNOW_TEST_ALL") || all < PLACES ? 1 : all / PLACES;
  calls_end();
  assert_true(all > 5);
  const char *from = getenv("WINNOW_TEST_FROM");
  for (long at = from ? atol(from) : 1 + n % stride; at <= all; at += stride) {
    const int errors[] = {EIO, ENOSPC};
    for (int i = 0; i < 2; i++)
      if (stride == 1 || (at + i) % 2 == 0) fail_one(w, at, errors[i], &old, &new);
  }
  print_message("%s: %ld calls\n", w->name, all);
  writers_end(&old, &new);
}

static int report(void **state) {
  (void)state;
  print_message("%ld errors\n", tried);
  return 0;
}

int main(void) {
  struct CMUnitTest tests[WRITERS];
  for (int i = 0; i < WRITERS; i++)
    tests[i] =
        (struct CMUnitTest){.name = writers[i].name, .test_func = test_each_call, .initial_state = (void *)(intptr_t)i};
  return cmocka_run_group_tests(tests, NULL, report);
}
