/* Files: mapping, reading with a limit, and writing, which must keep the old file whole whatever fails. */
#include "support.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/open.h"

static wn_context *ctx;
static char folder[512], path[600];

static void assert_no_temporary(void) {
  assert_int_equal(count_temporary(folder), 0);
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

/* A file that only its owner may read keeps its mode. A new file gets the process's default. */
static void a_write_keeps_permissions(void **state) {
  (void)state;
  struct stat st;
  const mode_t mask = umask(022);
  put_file(path, "old", 3);
  assert_int_equal(chmod(path, 0600), 0);
  assert_ok(ctx, wn_file_write(ctx, path, "new", 3));
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0600);
  assert_int_equal(unlink(path), 0);
  assert_ok(ctx, wn_file_write(ctx, path, "new", 3));
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0644);
  umask(mask);
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
  wn_writer_abort(&w); /* harmless a second time */
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
  wn_status large = wn_file_write(ctx, path, zeros, 100000); /* fails while writing */
  test_free(zeros);
  char error[200];
  snprintf(error, sizeof error, "%s", wn_context_error(ctx));
  bool left = count_temporary(folder) > 0;
  wn_status fits = wn_file_write(ctx, path, "12345678", 8);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  assert_int_equal(large, WN_ERR_IO);
  assert_non_null(strstr(error, "File too large"));
  assert_false(left);
  assert_int_equal(fits, WN_OK);
  assert_file_is(path, "12345678");
}

/* Only the flush in commit reaches the limit: the last byte goes beyond it. */
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

/* A disk that is really full: 64 KiB of tmpfs in the mount namespace of a child. Needs root. */
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
    if (count_temporary(folder)) _exit(4);
    f = fopen(path, "rb");
    if (!f || fread(found, 1, 4, f) != 3 || memcmp(found, "old", 3) != 0) _exit(5);
    fclose(f);
    if (wn_file_write(ctx, path, zeros, 16384) != WN_OK) _exit(6); /* its space was freed */
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
  assert_int_equal(count_temporary(folder), 1);
  assert_ok(ctx, wn_file_write(ctx, path, "next", 4)); /* removes the left-over */
  assert_file_is(path, "next");
  assert_no_temporary();
}

static void what_cannot_be_written_is_refused(void **state) {
  (void)state;
  struct wn_writer w;
  assert_refused(ctx, wn_file_write(ctx, "/dev/full", "x", 1), WN_ERR_IO, "/dev/full: it is a device");
  assert_refused(ctx, wn_file_write(ctx, folder, "x", 1), WN_ERR_IO, "it is a folder");
  /* A file that the caller names is saved in the same way, but a device is written to directly. */
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
  assert_int_equal(mkdir(path, 0777), 0); /* so that the rename fails */
  assert_refused(ctx, wn_writer_commit(ctx, &w), WN_ERR_IO, "rename");
  wn_writer_abort(&w);
  assert_no_temporary();
  assert_int_equal(rmdir(path), 0);
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
  assert_refused(ctx, wn_map_open(ctx, "/dev/null", &map), WN_ERR_IO, "it is a device, a regular file was expected");
  assert_ok(ctx, wn_file_read(ctx, "/proc/self/status", 1 << 20, &text, &bytes)); /* stat says that its size is 0 */
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
  return 0;
}
static int teardown(void **state) {
  (void)state;
  remove_folder(folder);
  wn_context_destroy(ctx);
  return 0;
}

/* The user's files stay: only a complete temporary name of this very file counts as a left-over. */
static void files_of_the_user_stay(void **state) {
  (void)state;
  static const char *const names[] = {"file.tmp",
                                      ".file.winnow-0123456789abc",
                                      ".file.winnow-0123456789ag",
                                      ".file.winnow-01234567",
                                      ".other.winnow-0123456789ab",
                                      "file.winnow-0123456789ab"};
  char own[700], stale[700];
  put_file(path, "old", 3);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(own, sizeof own, "%s/%s", folder, names[i]);
    put_file(own, names[i], strlen(names[i]));
  }
  snprintf(stale, sizeof stale, "%s/.file.winnow-0123456789ab", folder);
  assert_int_equal(symlink(path, stale), 0); /* a planted link is neither followed nor removed */
  assert_ok(ctx, wn_file_write(ctx, path, "new", 3));
  assert_file_is(path, "new");
  assert_int_equal(unlink(stale), 0);
  put_file(stale, "left", 4);
  assert_ok(ctx, wn_file_write(ctx, path, "newer", 5));
  assert_false(wn_path_exists(stale));
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(own, sizeof own, "%s/%s", folder, names[i]);
    assert_file_is(own, names[i]);
    assert_int_equal(unlink(own), 0);
  }
}

static void a_link_is_followed(void **state) {
  (void)state;
  char other[600], link[600], second[600], target[700], dangling[600];
  struct stat st;
  snprintf(other, sizeof other, "%s/other", folder);
  snprintf(target, sizeof target, "%s/target", other);
  snprintf(link, sizeof link, "%s/link", folder);
  snprintf(second, sizeof second, "%s/second", folder);
  snprintf(dangling, sizeof dangling, "%s/dangling", folder);
  assert_int_equal(mkdir(other, 0777), 0);
  put_file(target, "old", 3);
  assert_int_equal(symlink("other/target", link), 0); /* relative to the link's folder */
  assert_int_equal(symlink(link, second), 0);
  assert_ok(ctx, wn_file_write(ctx, second, "new", 3));
  assert_file_is(target, "new");
  assert_int_equal(lstat(second, &st), 0);
  assert_true(S_ISLNK(st.st_mode));
  assert_int_equal(lstat(link, &st), 0);
  assert_true(S_ISLNK(st.st_mode));
  assert_int_equal(symlink("other/made", dangling), 0);
  assert_ok(ctx, wn_file_write(ctx, dangling, "made", 4));
  snprintf(target, sizeof target, "%s/made", other);
  assert_file_is(target, "made");
  unlink(second);
  assert_int_equal(symlink("second", second), 0);
  assert_refused(ctx, wn_file_write(ctx, second, "x", 1), WN_ERR_IO, "second: Too many levels");
  unlink(second);
  assert_int_equal(symlink(other, second), 0);
  assert_refused(ctx, wn_file_write(ctx, second, "x", 1), WN_ERR_IO, "it is a folder");
  assert_no_temporary();
}

/* The longest name that a folder allows can be written. */
static void a_long_name(void **state) {
  (void)state;
  char longest[800], name[256];
  memset(name, 'n', 255);
  name[255] = 0;
  snprintf(longest, sizeof longest, "%s/%s", folder, name);
  assert_ok(ctx, wn_file_write(ctx, longest, "x", 1));
  assert_file_is(longest, "x");
  assert_int_equal(unlink(longest), 0);
}

static void what_is_no_regular_file_is_refused_at_once(void **state) {
  (void)state;
  char fifo[600], sock[600], text[64];
  struct wn_map map;
  char *data;
  size_t bytes;
  snprintf(fifo, sizeof fifo, "%s/fifo", folder);
  snprintf(sock, sizeof sock, "%s/socket", folder);
  assert_int_equal(mkfifo(fifo, 0666), 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(sock) >= sizeof address.sun_path) skip();
  strcpy(address.sun_path, sock);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  const struct {
    const char *path, *what;
  } cases[] = {{fifo, "a FIFO"}, {sock, "a socket"}, {folder, "a folder"}, {"/dev/zero", "a device"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    snprintf(text, sizeof text, "it is %s, a regular file was expected", cases[i].what);
    assert_refused(ctx, wn_map_open(ctx, cases[i].path, &map), WN_ERR_IO, text);
    assert_non_null(strstr(wn_context_error(ctx), cases[i].path));
    assert_refused(ctx, wn_file_read(ctx, cases[i].path, 100, &data, &bytes), WN_ERR_IO, text);
    if (i == 0) continue;
    snprintf(text, sizeof text, "it is %s, a text file or a pipe was expected", cases[i].what);
    assert_refused(ctx, wn_file_load(ctx, cases[i].path, 100, &data, &bytes), WN_ERR_IO, text);
  }
  close(fd);
  unlink(sock);
  unlink(fifo);
  assert_ok(ctx, wn_file_load(ctx, "/dev/null", 100, &data, &bytes));
  assert_true(bytes == 0);
  wn_free(data);
}

/* A FIFO whose writer starts late and is slow is read to its end, an endless one to the limit. */
static void texts_come_from_pipes(void **state) {
  (void)state;
  char fifo[600], *text;
  size_t bytes;
  snprintf(fifo, sizeof fifo, "%s/pipe", folder);
  assert_int_equal(mkfifo(fifo, 0666), 0);
  for (int endless = 0; endless < 2; endless++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      signal(SIGPIPE, SIG_DFL);
      usleep(100000);
      int fd = open(fifo, O_WRONLY);
      usleep(100000);
      do
        if (write(fd, "half ", 5) != 5) _exit(1);
      while (endless);
      usleep(100000);
      _exit(write(fd, "and half", 8) != 8);
    }
    int code = 0;
    if (!endless) {
      assert_ok(ctx, wn_file_load(ctx, fifo, 0, &text, &bytes));
      assert_string_equal(text, "half and half");
      assert_int_equal(bytes, 13);
      wn_free(text);
    } else {
      assert_refused(ctx, wn_file_load(ctx, fifo, 1 << 20, &text, &bytes), WN_ERR_FORMAT, "larger than the 1048576");
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(endless ? WIFSIGNALED(code) : code == 0);
  }
  unlink(fifo);
}

/* A writer that has opened the pipe but says nothing is waited for: here until its reader has begun to read. */
static void a_silent_writer_is_waited_for(void **state) {
  (void)state;
  char fifo[600], text[8];
  int go[2], fd, code;
  bool regular;
  uintmax_t bytes;
  snprintf(fifo, sizeof fifo, "%s/silent", folder);
  assert_int_equal(mkfifo(fifo, 0666), 0);
  assert_int_equal(pipe(go), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    close(go[1]);
    const int to = open(fifo, O_WRONLY);
    _exit(to < 0 || read(go[0], text, 1) != 1 || write(to, "said", 4) != 4);
  }
  assert_ok(ctx, wn_open_text(ctx, fifo, &fd, &regular, &bytes));
  assert_int_equal(write(go[1], "!", 1), 1);
  assert_int_equal(read(fd, text, sizeof text), 4); /* nothing was taken from it */
  assert_memory_equal(text, "said", 4);
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_int_equal(code, 0);
  close(fd);
  close(go[0]);
  close(go[1]);
  unlink(fifo);
}

static void messages_are_lines_of_utf8(void **state) {
  (void)state;
  static const struct {
    const char *text, *shown;
  } cases[] = {{"plain", "plain"},
               {"gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x8C\xBE", "gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x8C\xBE"},
               {"a\nb\tc\r", "a b c "},
               {"\x1b[2J\x07\x7f", "\\x1b[2J\\x07\\x7f"},
               {"\xFF\xFE", "\\xff\\xfe"},
               {"\xC2\x9B"
                "31m",
                "\\xc2\\x9b31m"}, /* C1 */
               {"\xE2\x80\xAE"
                "txt",
                "\\xe2\\x80\\xaetxt"},                                /* right-to-left override */
               {"\xC0\xAF\xED\xA0\x80", "\\xc0\\xaf\\xed\\xa0\\x80"}, /* overlong, surrogate */
               {"cut \xE2\x82", "cut \\xe2\\x82"},
               {"\xF4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}}; /* above U+10FFFF */
  char out[64];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(wn_line_escape(cases[i].text, out, sizeof out), strlen(cases[i].shown));
    assert_string_equal(out, cases[i].shown);
    char missing[700];
    snprintf(missing, sizeof missing, "%s/%s", folder, cases[i].text);
    char *text;
    size_t bytes;
    assert_refused(ctx, wn_file_load(ctx, missing, 0, &text, &bytes), WN_ERR_IO, cases[i].shown);
  }
  assert_int_equal(wn_line_escape("\xE2\x82\xAC\xE2\x82\xAC", out, 6), 3); /* a whole character, or none */
  assert_int_equal(wn_line_escape("ab\x01", out, 6), 2);
  assert_string_equal(out, "ab");
  assert_int_equal(wn_line_escape(NULL, out, 6), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_of_the_user_stay),
      cmocka_unit_test(a_link_is_followed),
      cmocka_unit_test(a_long_name),
      cmocka_unit_test(what_is_no_regular_file_is_refused_at_once),
      cmocka_unit_test(texts_come_from_pipes),
      cmocka_unit_test(a_silent_writer_is_waited_for),
      cmocka_unit_test(messages_are_lines_of_utf8),
      cmocka_unit_test(a_write_replaces_the_whole_file),
      cmocka_unit_test(a_write_keeps_permissions),
      cmocka_unit_test(an_abort_keeps_the_old_file),
      cmocka_unit_test(a_file_size_limit_keeps_the_old_file),
      cmocka_unit_test(a_limit_met_in_commit_keeps_the_old_file),
      cmocka_unit_test(a_full_disk_keeps_the_old_file),
      cmocka_unit_test(a_killed_writer_leaves_the_old_file),
      cmocka_unit_test(what_cannot_be_written_is_refused),
      cmocka_unit_test(maps_and_bounded_reads),
      cmocka_unit_test(folders),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
