/* Replaces the calls by which the library touches the disk with versions that count, kill, fail or record. Included by
 * a test program. Only calls on files below calls.root matter. Calls inside another library are not seen (zlib, or
 * stdio in libc: fopen, fwrite, fflush and fseeko are replaced instead). */
#ifndef WN_TESTS_CALLS_H
#define WN_TESTS_CALLS_H

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UNUSED
#define UNUSED __attribute__((unused))
#endif

/* What a call does to the disk, as recorded. Files are numbered in the order in which they are first seen. */
enum call_kind { CALL_CREATE, CALL_MKDIR, CALL_WRITE, CALL_TRUNCATE, CALL_RENAME, CALL_REMOVE, CALL_SYNC };

static struct {
  const char *root;      /* a folder; NULL: no call matters */
  long count;            /* calls so far */
  long fail_at, kill_at; /* call that fails; kill before (2n-1) or after (2n) call n */
  int error;             /* the errno of a failure */
  char failed[600];      /* the call that failed: "fsync PATH" */
  bool read_too;         /* count calls that change nothing, too */
  void (*log)(enum call_kind kind, const char *a, const char *b, int fd, const void *data, size_t bytes, off_t at);
} calls;

static bool calls_in_root(const char *path) {
  const size_t n = calls.root ? strlen(calls.root) : 0;
  return n > 0 && !strncmp(path, calls.root, n) && (path[n] == 0 || path[n] == '/');
}
static bool calls_path_of(int fd, char *out, size_t bytes) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, out, bytes - 1);
  out[n > 0 ? n : 0] = 0;
  return n > 0;
}
static void calls_path_at(int fd, const char *name, char *out, size_t bytes) {
  if (fd == AT_FDCWD || *name == '/') {
    snprintf(out, bytes, "%s", name);
    return;
  }
  char dir[300];
  calls_path_of(fd, dir, sizeof dir);
  snprintf(out, bytes, "%s/%s", dir, name);
}
static void calls_kill_here(long place) {
  if (calls.kill_at == place) kill(getpid(), SIGKILL);
}
/* Counts a call. True if it must fail, with errno set. */
static bool calls_fails(const char *what, const char *path) {
  if (!calls_in_root(path)) return false;
  calls.count++;
  calls_kill_here(2 * calls.count - 1);
  if (calls.count != calls.fail_at) return false;
  snprintf(calls.failed, sizeof calls.failed, "%s %s", what, path);
  errno = calls.error;
  return true;
}
static bool calls_fails_reading(const char *what, const char *path) {
  return calls.read_too && calls_fails(what, path);
}
/* After a counted call. */
static long calls_done(const char *path, long rc) {
  const int error = errno;
  if (calls_in_root(path)) calls_kill_here(2 * calls.count);
  errno = error;
  return rc;
}
static void calls_log(enum call_kind kind, const char *a, const char *b, int fd, const void *data, size_t bytes,
                      off_t at) {
  if (calls.log && calls_in_root(a)) calls.log(kind, a, b, fd, data, bytes, at);
}
static UNUSED void *calls_next(const char *name) {
  return dlsym(RTLD_NEXT, name);
}

static int calls_open(int dir, const char *name, int flags, mode_t mode) {
  char path[700];
  calls_path_at(dir, name, path, sizeof path);
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);
  if (writes ? calls_fails("open", path) : calls_fails_reading("open", path)) return -1;
  const bool there = access(path, F_OK) == 0;
  const int fd = (int)syscall(SYS_openat, dir, name, flags, mode);
  if (fd >= 0 && !there && (flags & O_CREAT)) calls_log(CALL_CREATE, path, NULL, fd, NULL, 0, 0);
  return writes ? (int)calls_done(path, fd) : fd;
}
int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
  va_end(more);
  return calls_open(AT_FDCWD, path, flags, mode);
}
int openat(int dir, const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
  va_end(more);
  return calls_open(dir, path, flags, mode);
}
int mkdirat(int dir, const char *name, mode_t mode) {
  char path[700];
  calls_path_at(dir, name, path, sizeof path);
  if (calls_fails("mkdir", path)) return -1;
  const int rc = (int)syscall(SYS_mkdirat, dir, name, mode);
  if (rc == 0) calls_log(CALL_MKDIR, path, NULL, -1, NULL, 0, 0);
  return (int)calls_done(path, rc);
}
int mkdir(const char *path, mode_t mode) {
  return mkdirat(AT_FDCWD, path, mode);
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
  char a[700], b[700];
  calls_path_at(from_dir, from, a, sizeof a);
  calls_path_at(to_dir, to, b, sizeof b);
  if (calls_fails("rename", a)) return -1;
  const int rc = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
  if (rc == 0) calls_log(CALL_RENAME, a, b, -1, NULL, 0, 0);
  return (int)calls_done(a, rc);
}
int rename(const char *from, const char *to) {
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
int unlinkat(int dir, const char *name, int flags) {
  char path[700];
  calls_path_at(dir, name, path, sizeof path);
  if (calls_fails(flags & AT_REMOVEDIR ? "rmdir" : "unlink", path)) return -1;
  const int rc = (int)syscall(SYS_unlinkat, dir, name, flags);
  if (rc == 0) calls_log(CALL_REMOVE, path, NULL, -1, NULL, 0, 0);
  return (int)calls_done(path, rc);
}
int unlink(const char *path) {
  return unlinkat(AT_FDCWD, path, 0);
}
int rmdir(const char *path) {
  return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}
int fsync(int fd) {
  char path[700];
  calls_path_of(fd, path, sizeof path);
  if (calls_fails("fsync", path)) return -1;
  const int rc = (int)syscall(SYS_fsync, fd);
  if (rc == 0) calls_log(CALL_SYNC, path, NULL, fd, NULL, 0, 0);
  return (int)calls_done(path, rc);
}
int ftruncate(int fd, off_t bytes) {
  char path[700];
  calls_path_of(fd, path, sizeof path);
  if (calls_fails("ftruncate", path)) return -1;
  const int rc = (int)syscall(SYS_ftruncate, fd, bytes);
  if (rc == 0) calls_log(CALL_TRUNCATE, path, NULL, fd, NULL, 0, bytes);
  return (int)calls_done(path, rc);
}
/* A full disk writes what still fits. */
ssize_t write(int fd, const void *data, size_t bytes) {
  char path[700];
  calls_path_of(fd, path, sizeof path);
  if (calls_fails("write", path)) {
    if (calls.error == ENOSPC && bytes > 1) return (ssize_t)syscall(SYS_write, fd, data, bytes / 2);
    return -1;
  }
  const off_t end = lseek(fd, 0, SEEK_CUR);
  struct stat st;
  const bool appends = fcntl(fd, F_GETFL) & O_APPEND && fstat(fd, &st) == 0;
  const ssize_t n = (ssize_t)syscall(SYS_write, fd, data, bytes);
  if (n > 0) calls_log(CALL_WRITE, path, NULL, fd, data, (size_t)n, appends ? st.st_size : end);
  return (ssize_t)calls_done(path, (long)n);
}
ssize_t read(int fd, void *data, size_t bytes) {
  char path[700] = "";
  if (calls.read_too) calls_path_of(fd, path, sizeof path);
  if (calls_fails_reading("read", path)) return -1;
  return (ssize_t)syscall(SYS_read, fd, data, bytes);
}
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  char path[700] = "";
  if (calls.read_too && fd >= 0) calls_path_of(fd, path, sizeof path);
  if (fd >= 0 && calls_fails_reading("mmap", path)) return MAP_FAILED;
  return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

/* ---- stdio ---- */

static UNUSED bool calls_stream_path(FILE *f, char *out, size_t bytes) {
  const int fd = fileno(f);
  *out = 0;
  return calls.root && fd > 2 && calls_path_of(fd, out, bytes);
}
FILE *fopen(const char *path, const char *mode) {
  FILE *(*next)(const char *, const char *);
  *(void **)&next = calls_next("fopen");
  if (*mode == 'r' ? calls_fails_reading("open", path) : calls_fails("open", path)) return NULL;
  return next(path, mode);
}
size_t fwrite(const void *data, size_t size, size_t n, FILE *f) {
  size_t (*next)(const void *, size_t, size_t, FILE *);
  char path[700];
  *(void **)&next = calls_next("fwrite");
  if (!calls_stream_path(f, path, sizeof path)) return next(data, size, n, f);
  if (calls_fails("write", path)) return 0;
  const off_t at = ftello(f);
  const size_t written = next(data, size, n, f);
  if (written == n) calls_log(CALL_WRITE, path, NULL, fileno(f), data, size * n, at);
  return (size_t)calls_done(path, (long)written);
}
int fflush(FILE *f) {
  int (*next)(FILE *);
  char path[700] = "";
  *(void **)&next = calls_next("fflush");
  if (f) calls_stream_path(f, path, sizeof path);
  if (calls_fails("write", path)) return EOF;
  return (int)calls_done(path, next(f));
}
int fseeko(FILE *f, off_t at, int whence) {
  int (*next)(FILE *, off_t, int);
  char path[700];
  *(void **)&next = calls_next("fseeko64");
  calls_stream_path(f, path, sizeof path);
  if (calls_fails("write", path)) return -1;
  return (int)calls_done(path, next(f, at, whence));
}

static UNUSED void calls_begin(const char *root) {
  calls.root = root;
  calls.count = calls.fail_at = calls.kill_at = 0;
  calls.failed[0] = 0;
  calls.log = NULL;
}
static UNUSED void calls_end(void) {
  calls.root = NULL;
  calls.log = NULL;
  calls.fail_at = calls.kill_at = 0;
}

#endif
