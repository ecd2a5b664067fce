/* Every writer of files is killed before and after each call by which it touches the disk. A reader must then find the
 * old files or the new ones, never a mixture, and the same call must succeed and leave the same files as an undisturbed
 * one. (test_kill.c: training, killed at random moments, down to the bits.)
 *
 * WINNOW_TEST_ALL: every place of every writer; else a selection. */
#include "fault/writers.h"

#include <sys/wait.h>

enum { PLACES = 16 };

static long killed;

static void kill_one(const struct writer *w, long place, const struct tree *old, const struct tree *new) {
  char error[2048], bad[400];
  tree_put(old, writers_root);
  fflush(NULL);
  const pid_t pid = fork();
  if (pid == 0) {
    calls_begin(writers_root);
    calls.kill_at = place;
    _exit((int)writers_call(w->run, error, sizeof error));
  }
  int code = 0;
  assert_int_equal(waitpid(pid, &code, 0), pid);
  if (!WIFSIGNALED(code) || WTERMSIG(code) != SIGKILL) fail_msg("%s, place %ld: not killed", w->name, place);
  killed++;
  struct tree left, read;
  tree_take(&left, writers_root);
  const int found = writers_generation(w, writers_root, old, new, bad, sizeof bad);
  if (!found) fail_msg("%s, killed at place %ld: %s", w->name, place, bad);
  tree_take(&read, writers_root); /* reading must change nothing */
  assert_int_equal(left.count, read.count);
  for (int i = 0; i < left.count; i++) assert_string_equal(left.files[i].path, read.files[i].path);
  tree_clear(&left);
  tree_clear(&read);
  if (writers_call(w->run, error, sizeof error) != WN_OK)
    fail_msg("%s, killed at place %ld: afterwards: %s", w->name, place, error);
  if (!(writers_generation(w, writers_root, old, new, bad, sizeof bad) & 2))
    fail_msg("%s, killed at place %ld: afterwards %s", w->name, place, bad);
  tree_take(&left, writers_root);
  for (int i = 0; i < left.count; i++)
    if (!tree_find(new, left.files[i].path))
      fail_msg("%s, killed at place %ld: afterwards there is %s", w->name, place, left.files[i].path);
  assert_int_equal(left.count, new->count);
  tree_clear(&left);
}

static void test_each_place(void **state) {
  const int n = (int)(intptr_t)*state;
  const struct writer *w = &writers[n];
  static struct tree old, new;
  char error[2048];
  writers_begin(w, &old, &new);
  calls_begin(writers_root);
  assert_int_equal(writers_call(w->run, error, sizeof error), WN_OK);
  const long all = 2 * calls.count, stride = getenv("WINNOW_TEST_ALL") || all < PLACES ? 1 : all / PLACES;
  calls_end();
  assert_true(all > 5);
  for (long place = 1 + n % stride; place <= all; place += stride) kill_one(w, place, &old, &new);
  writers_end(&old, &new);
}

static int report(void **state) {
  (void)state;
  print_message("%ld kills\n", killed);
  return 0;
}

int main(void) {
  struct CMUnitTest tests[WRITERS];
  for (int i = 0; i < WRITERS; i++)
    tests[i] = (struct CMUnitTest){
        .name = writers[i].name, .test_func = test_each_place, .initial_state = (void *)(intptr_t)i};
  return cmocka_run_group_tests(tests, NULL, report);
}
