/* Files: maps, bounded reading, and writes that must leave the old file whole whatever fails. */
#include "support.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/alloc.h"
#include "base/file.h"

static wn_context *ctx;
static char folder[512], path[600], temporary[640];

static void assert_no_temporary(void) {
  if (wn_path_exists(temporary)) fail_msg("%s was left behind", temporary);
}

static void a_write_replaces_the_whole_file(void **state) {
  (void)state;
  assert_ok(ctx, wn_file_write(ctx, path, "old and long", 12));
  assert_file_is(path, "old and long");
  assert_ok(ctx, wn_file_write(ctx, path, "new", 3));
  assert_file_is(path, "new");
  assert_ok(ctx, wn_file_write(ctx, path, "", 0));
  assert_file_is(path, "");
  assert_no_temporary();
}

static void an_abort_keeps_the_old_file(void **state) {
  (void)state;
  struct wn_writer w;
  put_file(path, "old", 3);
  assert_ok(ctx, wn_writer_open(ctx, path, &w));
  assert_ok(ctx, wn_writer_write(ctx, &w, "half", 4));
  assert_true(w.bytes == 4);
  wn_writer_abort(&w);
  assert_file_is(path, "old");
  assert_no_temporary();
  wn_writer_abort(&w); /* twice does no harm */
  assert_refused(ctx, wn_writer_write(ctx, &w, "x", 1), WN_ERR_ARGUMENT, "not open");
  assert_refused(ctx, wn_writer_commit(ctx, &w), WN_ERR_ARGUMENT, "not open");
}

static void a_file_size_limit_keeps_the_old_file(void **state) {
  (void)state;
  put_file(path, "old", 3);
  struct rlimit before, small;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 8192;
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  char *zeros = test_calloc(100000, 1);
  wn_status large = wn_file_write(ctx, path, zeros, 100000); /* fails in write */
  test_free(zeros);
  char error[200];
  snprintf(error, sizeof error, "%s", wn_context_error(ctx));
  bool left = wn_path_exists(temporary);
  wn_status fits = wn_file_write(ctx, path, "12345678", 8);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  assert_int_equal(large, WN_ERR_IO);
  assert_non_null(strstr(error, "File too large"));
  assert_false(left);
  assert_int_equal(fits, WN_OK);
  assert_file_is(path, "12345678");
}

/* The limit is met only when the buffer is flushed by commit: the last byte decides. */
static void a_limit_met_in_commit_keeps_the_old_file(void **state) {
  (void)state;
  put_file(path, "old", 3);
  struct rlimit before, small;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 10;
  struct wn_writer w;
  assert_ok(ctx, wn_writer_open(ctx, path, &w));
  assert_ok(ctx, wn_writer_write(ctx, &w, "0123456789x", 11)); /* in the buffer */
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  wn_status status = wn_writer_commit(ctx, &w);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  assert_int_equal(status, WN_ERR_IO);
  wn_writer_abort(&w);
  assert_file_is(path, "old");
  assert_no_temporary();
}

/* A full disk for real: 64 KiB of tmpfs in a mount namespace of a child's own. Needs root. */
static void a_full_disk_keeps_the_old_file(void **state) {
  (void)state;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=64k") != 0)
      _exit(77);
    char *zeros = calloc(1, 1 << 20), found[4] = "";
    FILE *f = fopen(path, "wb");
    if (!zeros || !f || fwrite("old", 1, 3, f) != 3 || fclose(f) != 0) _exit(1);
    if (wn_file_write(ctx, path, zeros, 1 << 20) != WN_ERR_IO) _exit(2);
    if (!strstr(wn_context_error(ctx), "No space left") || !strstr(wn_context_error(ctx), path)) _exit(3);
    if (wn_path_exists(temporary)) _exit(4);
    f = fopen(path, "rb");
    if (!f || fread(found, 1, 4, f) != 3 || memcmp(found, "old", 3) != 0) _exit(5);
    fclose(f);
    if (wn_file_write(ctx, path, zeros, 16384) != WN_OK) _exit(6); /* the space came back */
    free(zeros);
    _exit(0);
  }
  int code = 0;
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_true(WIFEXITED(code));
  if (WEXITSTATUS(code) == 77) skip();
  assert_int_equal(WEXITSTATUS(code), 0);
}

static void a_killed_writer_leaves_the_old_file(void **state) {
  (void)state;
  put_file(path, "old", 3);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    struct wn_writer w;
    char block[8192] = {0};
    if (wn_writer_open(ctx, path, &w) == WN_OK && wn_writer_write(ctx, &w, block, sizeof block) == WN_OK) fflush(w.f);
    raise(SIGKILL);
    _exit(1);
  }
  int code = 0;
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_true(WIFSIGNALED(code));
  assert_file_is(path, "old");
  assert_true(wn_path_exists(temporary));
  assert_ok(ctx, wn_file_write(ctx, path, "next", 4)); /* reuses what was left */
  assert_file_is(path, "next");
  assert_no_temporary();
}

static void what_cannot_be_written_is_refused(void **state) {
  (void)state;
  struct wn_writer w;
  assert_refused(ctx, wn_file_write(ctx, "/dev/full", "x", 1), WN_ERR_IO, "/dev/full: it is not a regular file");
  assert_refused(ctx, wn_file_write(ctx, folder, "x", 1), WN_ERR_IO, "it is a folder");
  /* A caller's file: the same, but a device is written to. */
  assert_ok(ctx, wn_file_save(ctx, "/dev/null", "x", 1));
  assert_refused(ctx, wn_file_save(ctx, "/dev/full", "x", 1), WN_ERR_IO, "/dev/full");
  assert_refused(ctx, wn_file_save(ctx, folder, "x", 1), WN_ERR_IO, "it is a folder");
  assert_refused(ctx, wn_file_write(ctx, "", "x", 1), WN_ERR_ARGUMENT, "without a name");
  char missing[700];
  snprintf(missing, sizeof missing, "%s/none/f", folder);
  assert_refused(ctx, wn_file_write(ctx, missing, "x", 1), WN_ERR_IO, "No such file");
  char *longest = test_malloc(8192);
  memset(longest, 'a', 8191);
  longest[8191] = 0;
  assert_refused(ctx, wn_file_write(ctx, longest, "x", 1), WN_ERR_ARGUMENT, "too long");
  assert_refused(ctx, wn_make_dirs(ctx, longest), WN_ERR_ARGUMENT, "cannot create the folder");
  test_free(longest);

  assert_ok(ctx, wn_writer_open(ctx, path, &w));
  struct wn_writer second;
  assert_refused(ctx, wn_writer_open(ctx, path, &second), WN_ERR_IO, "another process is writing it");
  unlink(path);
  assert_int_equal(mkdir(path, 0777), 0); /* the rename must fail */
  assert_refused(ctx, wn_writer_commit(ctx, &w), WN_ERR_IO, "rename");
  wn_writer_abort(&w);
  assert_no_temporary();
  assert_int_equal(rmdir(path), 0);
  assert_int_equal(symlink("/etc/passwd", temporary), 0); /* a planted link is not followed */
  assert_refused(ctx, wn_file_write(ctx, path, "x", 1), WN_ERR_IO, "cannot write");
  assert_int_equal(unlink(temporary), 0);
}

static void maps_and_bounded_reads(void **state) {
  (void)state;
  struct wn_map map;
  put_file(path, "hello", 5);
  assert_ok(ctx, wn_map_open(ctx, path, &map));
  assert_int_equal(map.bytes, 5);
  assert_memory_equal(map.data, "hello", 5);
  wn_map_close(&map);
  assert_null(map.data);
  wn_map_close(&map);
  char *text = NULL;
  size_t bytes = 0;
  assert_ok(ctx, wn_file_read(ctx, path, 5, &text, &bytes));
  assert_int_equal(bytes, 5);
  assert_string_equal(text, "hello");
  wn_free(text);
  assert_refused(ctx, wn_file_read(ctx, path, 4, &text, &bytes), WN_ERR_FORMAT, "larger than the 4 bytes");
  assert_null(text);
  put_file(path, "", 0);
  assert_ok(ctx, wn_map_open(ctx, path, &map));
  assert_true(map.data == NULL && map.bytes == 0);
  wn_map_close(&map);
  assert_ok(ctx, wn_file_read(ctx, path, 100, &text, &bytes));
  assert_true(bytes == 0 && text && text[0] == 0);
  wn_free(text);
  assert_refused(ctx, wn_map_open(ctx, folder, &map), WN_ERR_IO, "it is a folder");
  assert_refused(ctx, wn_map_open(ctx, "/dev/null", &map), WN_ERR_IO, "not a regular file");
  assert_ok(ctx, wn_file_read(ctx, "/proc/self/status", 1 << 20, &text, &bytes)); /* its size says 0 */
  assert_true(bytes > 0);
  wn_free(text);
}

static void folders(void **state) {
  (void)state;
  char deep[700], joined[32];
  snprintf(deep, sizeof deep, "%s/a/b//c/", folder);
  assert_ok(ctx, wn_make_dirs(ctx, deep));
  assert_ok(ctx, wn_make_dirs(ctx, deep));
  assert_true(wn_path_is_dir(deep));
  put_file(path, "x", 1);
  assert_refused(ctx, wn_make_dirs(ctx, path), WN_ERR_IO, "a file of that name exists");
  assert_ok(ctx, wn_path_join(ctx, joined, sizeof joined, "d/", "f"));
  assert_string_equal(joined, "d/f");
  assert_ok(ctx, wn_path_join(ctx, joined, sizeof joined, "", "f"));
  assert_string_equal(joined, "f");
  assert_refused(ctx, wn_path_join(ctx, joined, 4, "abc", "f"), WN_ERR_ARGUMENT, "too long");
}

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  make_folder(folder);
  snprintf(path, sizeof path, "%s/file", folder);
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  remove_folder(folder);
  wn_context_destroy(ctx);
  return 0;
}

static void a_blocked_temporary_keeps_the_old_file(void **state) {
  (void)state;
  put_file(path, "old", 3);
  assert_int_equal(mkdir(temporary, 0777), 0); /* stands where the temporary file must go; root cannot pass it either */
  wn_status status = wn_file_write(ctx, path, "new", 3);
  assert_int_equal(rmdir(temporary), 0);
  assert_refused(ctx, status, WN_ERR_IO, "Is a directory");
  assert_file_is(path, "old");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_write_replaces_the_whole_file),
      cmocka_unit_test(an_abort_keeps_the_old_file),
      cmocka_unit_test(a_file_size_limit_keeps_the_old_file),
      cmocka_unit_test(a_limit_met_in_commit_keeps_the_old_file),
      cmocka_unit_test(a_full_disk_keeps_the_old_file),
      cmocka_unit_test(a_killed_writer_leaves_the_old_file),
      cmocka_unit_test(a_blocked_temporary_keeps_the_old_file),
      cmocka_unit_test(what_cannot_be_written_is_refused),
      cmocka_unit_test(maps_and_bounded_reads),
      cmocka_unit_test(folders),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
