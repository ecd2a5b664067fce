/* Files: read-only maps; writing under a temporary name in the same folder, then sync and rename, so that a crash or a
 * full disk leaves either the whole old file or the whole new one. */
#include "base/file.h"
#include "base/alloc.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static wn_status file_fail_errno(wn_context *ctx, const char *verb, const char *path, int error) {
  return wn_fail(ctx, WN_ERR_IO, "cannot %s %s: %s", verb, path, strerror(error));
}

static wn_status file_open_for_reading(wn_context *ctx, const char *path, int *out, struct stat *st) {
  int fd;
  do fd = open(path, O_RDONLY | O_CLOEXEC);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return file_fail_errno(ctx, "open", path, errno);
  if (fstat(fd, st) != 0) {
    int error = errno;
    close(fd);
    return file_fail_errno(ctx, "open", path, error);
  }
  if (S_ISDIR(st->st_mode)) {
    close(fd);
    return wn_fail(ctx, WN_ERR_IO, "cannot read %s: it is a folder, not a file", path);
  }
  *out = fd;
  return WN_OK;
}

wn_status wn_map_open(wn_context *ctx, const char *path, struct wn_map *out) {
  *out = (struct wn_map){0};
  int fd;
  struct stat st;
  WN_TRY(file_open_for_reading(ctx, path, &fd, &st));
  wn_status status = WN_OK;
  if (!S_ISREG(st.st_mode)) {
    status = wn_fail(ctx, WN_ERR_IO, "cannot map %s: it is not a regular file", path);
  } else if ((uintmax_t)st.st_size > (uintmax_t)PTRDIFF_MAX) {
    status = wn_fail(ctx, WN_ERR_IO, "cannot map %s: it is larger than the address space", path);
  } else if (st.st_size > 0) {
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
      status = file_fail_errno(ctx, "map", path, errno);
    else
      *out = (struct wn_map){.data = p, .bytes = (size_t)st.st_size};
  }
  close(fd);
  return status;
}

void wn_map_close(struct wn_map *map) {
  if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
  *map = (struct wn_map){0};
}

wn_status wn_file_read(wn_context *ctx, const char *path, size_t limit, char **out, size_t *bytes) {
  *out = NULL;
  *bytes = 0;
  int fd;
  struct stat st;
  WN_TRY(file_open_for_reading(ctx, path, &fd, &st));
  wn_status status = WN_OK;
  char *text = NULL;
  size_t used = 0, capacity = S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size + 1 : 65536;
  if (limit > (size_t)PTRDIFF_MAX) limit = (size_t)PTRDIFF_MAX;
  if (capacity > limit) capacity = limit + 1; /* one byte past the limit tells a file that is too large */
  void *p;
  WN_TRY_GOTO(wn_alloc(ctx, path, capacity + 1, &p), done);
  text = p;
  for (;;) {
    if (used == capacity) {
      if (capacity > limit) break;
      size_t larger = capacity > limit / 2 ? limit + 1 : 2 * capacity;
      WN_TRY_GOTO(wn_alloc(ctx, path, larger + 1, &p), done);
      memcpy(p, text, used);
      wn_free(text);
      text = p;
      capacity = larger;
    }
    ssize_t n = read(fd, text + used, capacity - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      status = file_fail_errno(ctx, "read", path, errno);
      goto done;
    }
    if (n == 0) break;
    used += (size_t)n;
  }
  if (used > limit) {
    status = wn_fail(ctx, WN_ERR_FORMAT, "%s is larger than the %zu bytes that such a file may have", path, limit);
    goto done;
  }
  text[used] = 0;
  *out = text;
  *bytes = used;
  text = NULL;
done:
  wn_free(text);
  close(fd);
  return status;
}

/* The folder of a path, "." when it names none. */
static void file_parent_of(const char *path, char *out, size_t bytes) {
  const char *slash = strrchr(path, '/');
  size_t n = slash ? (size_t)(slash - path) : 0;
  if (!slash)
    snprintf(out, bytes, ".");
  else if (n == 0)
    snprintf(out, bytes, "/");
  else
    snprintf(out, bytes, "%.*s", (int)n, path);
}

/* The temporary file has a fixed name, so that a killed process's file is reused instead of piling up; a lock keeps two
 * writers apart. */
wn_status wn_writer_open(wn_context *ctx, const char *path, struct wn_writer *w) {
  w->f = NULL;
  w->bytes = 0;
  w->temporary[0] = 0;
  if (!*path) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write a file without a name");
  if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %.200s...: the path is too long", path);
  struct stat st;
  if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* renaming would replace the device or pipe */
    return wn_fail(ctx, WN_ERR_IO, "cannot write %s: it is %s", path,
                   S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
  char temporary[sizeof w->temporary];
  snprintf(temporary, sizeof temporary, "%s.tmp", w->path);
  for (int attempt = 0; attempt < 16; attempt++) {
    int fd = open(temporary, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) {
      if (errno == EINTR) continue;
      return file_fail_errno(ctx, "write", temporary, errno);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(fd);
      return wn_fail(ctx, WN_ERR_IO, "cannot write %s: another process is writing it", path);
    }
    struct stat mine, named;
    /* Between open and lock its former owner may have renamed it to the final name. */
    if (fstat(fd, &mine) != 0 || stat(temporary, &named) != 0 || mine.st_ino != named.st_ino ||
        mine.st_dev != named.st_dev) {
      close(fd);
      continue;
    }
    if (!S_ISREG(mine.st_mode) || ftruncate(fd, 0) != 0 || !(w->f = fdopen(fd, "w"))) {
      int error = S_ISREG(mine.st_mode) ? errno : EINVAL;
      close(fd);
      return file_fail_errno(ctx, "write", temporary, error);
    }
    memcpy(w->temporary, temporary, sizeof temporary);
    return WN_OK;
  }
  return wn_fail(ctx, WN_ERR_IO, "cannot write %s: another process keeps writing it", path);
}

wn_status wn_writer_write(wn_context *ctx, struct wn_writer *w, const void *data, size_t bytes) {
  if (!w->f) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: the file is not open", w->path);
  if (bytes && fwrite(data, 1, bytes, w->f) != bytes) return file_fail_errno(ctx, "write", w->path, errno);
  w->bytes += bytes;
  return WN_OK;
}

wn_status wn_writer_commit(wn_context *ctx, struct wn_writer *w) {
  if (!w->f) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: the file is not open", w->path);
  if (fflush(w->f) != 0 || ferror(w->f)) return file_fail_errno(ctx, "write", w->path, errno);
  if (fsync(fileno(w->f)) != 0) return file_fail_errno(ctx, "sync", w->path, errno);
  /* Renamed before it is closed: the lock must cover the temporary name. */
  if (rename(w->temporary, w->path) != 0) return file_fail_errno(ctx, "rename a temporary file to", w->path, errno);
  w->temporary[0] = 0;
  fclose(w->f);
  w->f = NULL;
  char parent[sizeof w->path];
  file_parent_of(w->path, parent, sizeof parent);
  int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) { /* some file systems cannot sync a folder: the file itself is safe */
    (void)fsync(fd);
    close(fd);
  }
  return WN_OK;
}

void wn_writer_abort(struct wn_writer *w) {
  if (w->temporary[0]) unlink(w->temporary);
  w->temporary[0] = 0;
  if (w->f) fclose(w->f);
  w->f = NULL;
}

static wn_status file_write_directly(wn_context *ctx, const char *path, const void *data, size_t bytes) {
  FILE *f = fopen(path, "w");
  if (!f) return file_fail_errno(ctx, "write", path, errno);
  const bool written = fwrite(data, 1, bytes, f) == bytes && !fflush(f);
  const int error = errno;
  return fclose(f) == 0 && written ? WN_OK : file_fail_errno(ctx, "write", path, error);
}

wn_status wn_file_save(wn_context *ctx, const char *path, const void *data, size_t bytes) {
  struct stat st;
  if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
    return file_write_directly(ctx, path, data, bytes);
  return wn_file_write(ctx, path, data, bytes);
}

wn_status wn_file_write(wn_context *ctx, const char *path, const void *data, size_t bytes) {
  struct wn_writer w;
  wn_status status = wn_writer_open(ctx, path, &w);
  if (status == WN_OK) status = wn_writer_write(ctx, &w, data, bytes);
  if (status == WN_OK) status = wn_writer_commit(ctx, &w);
  if (status != WN_OK) wn_writer_abort(&w);
  return status;
}

wn_status wn_make_dirs(wn_context *ctx, const char *path) {
  char part[4096];
  size_t n = strlen(path);
  if (n == 0 || n >= sizeof part) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot create the folder \"%.200s\"", path);
  memcpy(part, path, n + 1);
  for (size_t i = 1; i <= n; i++) {
    if (part[i] != '/' && part[i] != 0) continue;
    char keep = part[i];
    part[i] = 0;
    if (mkdir(part, 0777) != 0 && errno != EEXIST) return file_fail_errno(ctx, "make the folder", part, errno);
    part[i] = keep;
  }
  if (!wn_path_is_dir(path))
    return wn_fail(ctx, WN_ERR_IO, "cannot create the folder %s: a file of that name exists", path);
  return WN_OK;
}

bool wn_path_exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0;
}

bool wn_path_is_dir(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

wn_status wn_path_join(wn_context *ctx, char *out, size_t out_bytes, const char *dir, const char *name) {
  size_t n = strlen(dir);
  const char *separator = n == 0 || dir[n - 1] == '/' ? "" : "/";
  if ((size_t)snprintf(out, out_bytes, "%s%s%s", dir, separator, name) >= out_bytes)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "the path %.200s.../%.100s is too long", dir, name);
  return WN_OK;
}

bool wn_path_has(const char *dir, const char *name) {
  char path[4096];
  return wn_path_join(NULL, path, sizeof path, dir, name) == WN_OK && wn_path_exists(path);
}
