/* A run that is killed, interrupted or out of disk space loses at most the steps since its last checkpoint. Resumed, it
 * ends with the same bits as an undisturbed run.
 *
 * Each run is a child process with one thread, so that fork is safe. Kills happen at chosen places: the calls by which
 * a save changes the disk are replaced by ones that count, and the child kills itself at call n, for every thirteenth n
 * (WINNOW_TEST_ALL: every n). They also happen from outside at random moments. A full disk is a limit on file sizes,
 * with several sizes. */
#include "train/tiny.h"
#include "fault/calls.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "base/rng.h"
#include "train/checkpoint.h"

enum { STEPS = 4, KILLED = -1 };

static wn_recipe tiny(void) {
  wn_recipe r;
  tiny_recipe(&r, true);
  r.model.layers = 1;
  r.train.steps = STEPS;
  r.train.batch = 2;
  r.train.save_every = 1;
  return r;
}

struct child {
  long kill_at;
  rlim_t file_bytes;
  int report;
  bool interruptible;
};
static wn_context *interrupted;
static void on_signal(int number) {
  (void)number;
  wn_context_cancel(interrupted);
}

/* Starts a run in a child process. Its exit code is the status. */
static pid_t start(const wn_recipe *r, const char *dir, const struct child *how) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid) return pid;
  wn_context *ctx = NULL;
  wn_context_options options = {.size = sizeof options, .threads = 1};
  if (wn_context_create(&options, &ctx) != WN_OK) _exit(99);
  if (how->interruptible) {
    interrupted = ctx;
    /* On a stack of its own, as wn_context_cancel's header asks. */
    static char stack[64 << 10];
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK}, NULL);
  }
  if (how->file_bytes) {
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){how->file_bytes, how->file_bytes});
  }
  calls_begin(dir);
  calls.kill_at = how->kill_at;
  wn_status status = wn_train_run(ctx, r, dir, wn_checkpoint_exists(dir), NULL, NULL);
  const long total = 2 * calls.count;
  calls_end();
  if (how->report >= 0 && write(how->report, &total, sizeof total) != (ssize_t)sizeof total) _exit(98);
  wn_context_destroy(ctx);
  _exit(status);
}

/* The child's status, or KILLED. */
static int finish(pid_t pid) {
  int code = 0;
  assert_int_equal(waitpid(pid, &code, 0), pid);
  if (WIFSIGNALED(code)) {
    assert_int_equal(WTERMSIG(code), SIGKILL);
    return KILLED;
  }
  assert_true(WIFEXITED(code));
  return WEXITSTATUS(code);
}

static int run(const wn_recipe *r, const char *dir, long at, rlim_t file_bytes) {
  return finish(start(r, dir, &(struct child){.kill_at = at, .file_bytes = file_bytes, .report = -1}));
}

/* An undisturbed run. Returns the number of places at which it can be killed. */
static long reference(const wn_recipe *r, const char *dir) {
  int ends[2];
  long total = 0;
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(finish(start(r, dir, &(struct child){.report = ends[1]})), WN_OK);
  assert_int_equal(read(ends[0], &total, sizeof total), sizeof total);
  close(ends[0]);
  close(ends[1]);
  return total;
}

static void same_end(const char *a, const char *b, const char *what, long n) {
  static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json", "config.json"};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (!tiny_same_file(a, b, files[i]))
      fail_msg("%s %ld: %s differs from that of the undisturbed run", what, n, files[i]);
  char path[400];
  snprintf(path, sizeof path, "%s/.next", b);
  assert_int_not_equal(access(path, F_OK), 0);
  snprintf(path, sizeof path, "%s/.commit", b);
  assert_int_not_equal(access(path, F_OK), 0);
  int lines = 0;
  char *log = tiny_read(b, "log.jsonl", NULL);
  for (char *c = log; *c; c++) lines += *c == '\n';
  free(log);
  assert_int_equal(lines, STEPS);
}

static void test_kill_at_every_place(void **state) {
  (void)state;
  char whole[256], dir[256];
  tiny_folder(whole);
  wn_recipe r = tiny();
  long total = reference(&r, whole);
  assert_true(total > 60);
  /* The first save and two more: later ones repeat these. */
  long last = total * 3 / (STEPS + 1), stride = getenv("WINNOW_TEST_ALL") ? 1 : 13;
  for (long n = 1; n <= last; n += stride) {
    tiny_folder(dir);
    assert_int_equal(run(&r, dir, n, 0), KILLED);
    /* Sometimes kill it once more while it recovers. Then let it finish. */
    if (n % 4 == 0) run(&r, dir, 1 + n % 5, 0);
    int status = run(&r, dir, 0, 0);
    if (status != WN_OK) fail_msg("killed at place %ld: resuming gives %s", n, wn_status_name((wn_status)status));
    same_end(whole, dir, "killed at place", n);
    tiny_remove(dir);
  }
  tiny_remove(whole);
}

static void test_kill_at_random(void **state) {
  (void)state;
  char whole[256], dir[256];
  tiny_folder(whole);
  wn_recipe r = tiny();
  r.train.steps = STEPS;
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  reference(&r, whole);
  clock_gettime(CLOCK_MONOTONIC, &b);
  uint64_t length = (uint64_t)(b.tv_sec - a.tv_sec) * 1000000000u + (uint64_t)(b.tv_nsec - a.tv_nsec),
           seed = (uint64_t)b.tv_nsec;
  print_message("seed %llu, a run takes %.1f ms\n", (unsigned long long)seed, (double)length * 1e-6);
  for (uint64_t i = 0; i < 3; i++) {
    tiny_folder(dir);
    int status = KILLED;
    for (uint64_t k = 0; k < 4 && status == KILLED; k++) {
      pid_t pid = start(&r, dir, &(struct child){.report = -1});
      uint64_t wait = wn_random_below(seed, WN_STREAM_TEST, i, k, length);
      nanosleep(&(struct timespec){(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)}, NULL);
      kill(pid, SIGKILL);
      status = finish(pid);
    }
    if (status == KILLED) status = run(&r, dir, 0, 0);
    assert_int_equal(status, WN_OK);
    same_end(whole, dir, "random kills, round", (long)i);
    tiny_remove(dir);
  }
  tiny_remove(whole);
}

static void test_full_disk(void **state) {
  (void)state;
  char whole[256], dir[256], before[256], path[400];
  tiny_folder(whole), tiny_folder(dir), tiny_folder(before);
  wn_recipe r = tiny(), part = tiny();
  reference(&r, whole);
  part.train.steps = 2;
  assert_int_equal(run(&part, dir, 0, 0), WN_OK);
  assert_int_equal(run(&part, before, 0, 0), WN_OK);
  snprintf(path, sizeof path, "%s/model.safetensors", dir);
  struct stat model;
  assert_int_equal(stat(path, &model), 0);
  /* Limits that are too small for: the log, recipe.json, the model, the model's end, optimizer.safetensors. */
  const rlim_t limits[] = {64, 1024, (rlim_t)model.st_size / 2, (rlim_t)model.st_size - 1,
                           (rlim_t)model.st_size + 1024};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    assert_int_equal(run(&r, dir, 0, limits[i]), WN_ERR_IO);
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json", "recipe.json"};
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) assert_true(tiny_same_file(before, dir, files[k]));
    snprintf(path, sizeof path, "%s/.next", dir);
    assert_int_not_equal(access(path, F_OK), 0); /* the failed save's space was freed */
  }
  assert_int_equal(run(&r, dir, 0, 0), WN_OK);
  same_end(whole, dir, "full disk", 0);
  /* Without room for its first checkpoint, a run must say so before it trains. */
  tiny_remove(before);
  tiny_folder(before);
  assert_int_equal(run(&r, before, 0, 1024), WN_ERR_IO);
  assert_false(wn_checkpoint_exists(before));
  tiny_remove(whole), tiny_remove(dir), tiny_remove(before);
}

static void test_interrupt(void **state) {
  (void)state;
  char whole[256], dir[256], path[400];
  tiny_folder(whole), tiny_folder(dir);
  wn_recipe r = tiny();
  r.train.steps = 1000000;
  r.train.save_every = 0;
  snprintf(path, sizeof path, "%s/log.jsonl", dir);
  pid_t pid = start(&r, dir, &(struct child){.report = -1, .interruptible = true});
  struct stat log = {0};
  for (int i = 0; i < 5000 && log.st_size < 300; i++) {
    nanosleep(&(struct timespec){0, 2000000}, NULL);
    stat(path, &log);
  }
  kill(pid, SIGINT);
  assert_int_equal(finish(pid), WN_ERR_CANCELLED);
  wn_context *ctx = tiny_context("cpu", 1);
  struct wn_run_state saved;
  must(ctx, wn_checkpoint_state(ctx, dir, &saved));
  assert_true(saved.step > 0 && saved.step < r.train.steps);
  wn_context_destroy(ctx);
  r.train.steps = saved.step + 3;
  assert_int_equal(run(&r, dir, 0, 0), WN_OK);
  reference(&r, whole);
  assert_true(tiny_same_file(whole, dir, "model.safetensors"));
  assert_true(tiny_same_file(whole, dir, "optimizer.safetensors"));
  tiny_remove(whole), tiny_remove(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill_at_every_place), cmocka_unit_test(test_kill_at_random),
                                     cmocka_unit_test(test_full_disk), cmocka_unit_test(test_interrupt)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
