/* Opening files. Paths come from users, who may have them from strangers. A FIFO would wait for a writer that never
 * comes, opening a device can have side effects, and an endless device would be read until memory is full. So each path
 * is checked (stat), opened without waiting (O_NONBLOCK) and checked again (fstat), as it may have changed in
 * between. */
#include "base/open.h"
#include "base/error.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

const char *wn_file_kind(unsigned mode) {
  return S_ISREG(mode)    ? "a regular file"
         : S_ISDIR(mode)  ? "a folder"
         : S_ISFIFO(mode) ? "a FIFO"
         : S_ISSOCK(mode) ? "a socket"
         : S_ISBLK(mode)  ? "a block device"
                          : "a device";
}

static wn_status open_fail(wn_context *ctx, const char *path, int error) {
  return wn_fail(ctx, WN_ERR_IO, "cannot open %s: %s", path, strerror(error));
}

static wn_status open_fail_kind(wn_context *ctx, const char *path, unsigned mode, const char *expected) {
  return wn_fail(ctx, WN_ERR_IO, "cannot read %s: it is %s, %s was expected", path, wn_file_kind(mode), expected);
}

/* Never blocks. Without O_NONBLOCK, opening a FIFO would; for a terminal the flag does no harm. */
static int open_for_reading(const char *path) {
  int fd;
  do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  while (fd < 0 && errno == EINTR);
  return fd;
}

wn_status wn_open_file(wn_context *ctx, const char *path, int *out, uintmax_t *bytes) {
  static const char expected[] = "a regular file";
  struct stat st;
  *out = -1;
  if (stat(path, &st) != 0) return open_fail(ctx, path, errno);
  if (!S_ISREG(st.st_mode)) return open_fail_kind(ctx, path, st.st_mode, expected);
  const int fd = open_for_reading(path);
  if (fd < 0) return open_fail(ctx, path, errno);
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return open_fail_kind(ctx, path, st.st_mode, expected);
  }
  *bytes = (uintmax_t)st.st_size;
  *out = fd;
  return WN_OK;
}

/* Of the devices, only terminals and /dev/null: /dev/zero never ends, and a tape would start to wind. */
static bool open_is_text(int fd, const struct stat *st) {
  return S_ISREG(st->st_mode) || S_ISFIFO(st->st_mode) ||
         (S_ISCHR(st->st_mode) && (isatty(fd) || st->st_rdev == makedev(1, 3)));
}

/* Does the FIFO have a writer, or data that one left? Without a writer a FIFO reads as ended; with a silent writer
 * there is nothing to read yet. The test must not consume data. */
static bool open_has_writer(int fd) {
  int to[2];
  if (pipe2(to, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const ssize_t n = tee(fd, to[1], 1, SPLICE_F_NONBLOCK);
  const bool has = n > 0 || (n < 0 && errno == EAGAIN);
  close(to[0]);
  close(to[1]);
  return has;
}

/* Waits for data: a writer may take its time. */
static bool open_await_writer(int fd) {
  for (int i = 0; i < WN_WRITER_SECONDS * 20; i++) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (poll(&ready, 1, 50) > 0) return true; /* data, or the writer has closed */
    if (open_has_writer(fd)) return true;
  }
  return false;
}

wn_status wn_open_text(wn_context *ctx, const char *path, int *out, bool *regular, uintmax_t *bytes) {
  const bool standard = strcmp(path, "-") == 0;
  const char *name = standard ? "standard input" : path;
  static const char expected[] = "a text file or a pipe";
  struct stat st;
  *out = -1;
  if (!standard && stat(path, &st) != 0) return open_fail(ctx, path, errno);
  if (!standard && !S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode))
    return open_fail_kind(ctx, name, st.st_mode, expected);
  const int fd = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open_for_reading(path);
  if (fd < 0 || fstat(fd, &st) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return open_fail(ctx, name, error);
  }
  if (!open_is_text(fd, &st)) {
    close(fd);
    return open_fail_kind(ctx, name, st.st_mode, expected);
  }
  if (!standard && S_ISFIFO(st.st_mode) && !open_await_writer(fd)) {
    close(fd);
    return wn_fail(ctx, WN_ERR_IO, "cannot read %s: it is a FIFO, and nothing opened it for writing within %d seconds",
                   name, WN_WRITER_SECONDS);
  }
  const int flags = fcntl(fd, F_GETFL);
  if (!standard && flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  *regular = S_ISREG(st.st_mode);
  *bytes = *regular ? (uintmax_t)st.st_size : 0;
  *out = fd;
  return WN_OK;
}

bool wn_path_is_stream(const char *path) {
  struct stat st;
  return strcmp(path, "-") == 0 || (stat(path, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)));
}

int wn_open_new(const char *path) {
  int fd;
  do fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  while (fd < 0 && errno == EINTR);
  return fd;
}

/* The descriptor, or -1 where it is of no regular file. */
static int open_regular(int fd) {
  struct stat st;
  if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))) return fd;
  close(fd);
  errno = EINVAL;
  return -1;
}

int wn_open_append(const char *path) {
  return open_regular(open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
}

int wn_open_again(const char *path) {
  return open_regular(open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
}

FILE *wn_open_output(const char *path) {
  return fopen(path, "we");
}

int wn_open_folder(const char *path) {
  return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int wn_open_folder_at(int dir, const char *name) {
  return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int wn_open_file_at(int dir, const char *name) {
  return open_regular(openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

DIR *wn_open_entries(const char *path) {
  return opendir(path);
}

FILE *wn_open_system(const char *path) {
  return fopen(path, "re");
}

void *wn_open_module(const char *path) {
  return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}
