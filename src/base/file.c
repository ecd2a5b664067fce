/* Files: read-only maps; writing under a temporary name in the same folder, then sync and rename, so that a crash or a
 * full disk leaves either the whole old file or the whole new one. */
#include "base/file.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/misuse.h"
#include "base/open.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static wn_status file_fail_errno(wn_context *ctx, const char *verb, const char *path, int error) {
  return wn_fail(ctx, WN_ERR_IO, "cannot %s %s: %s", verb, path, strerror(error));
}

/* The maps that wn_mapped_file knows; it may be called from a signal handler. Setting `bytes` claims a slot, setting
 * `data` makes it visible. Maps beyond FILE_MAPS are not listed. */
enum { FILE_MAPS = 64 };
static struct {
  _Atomic uintptr_t data; /* 0: free */
  _Atomic size_t bytes;   /* 0: free */
  char path[512];
} file_maps[FILE_MAPS];

static void file_map_remember(const struct wn_map *map, const char *path) {
  for (int i = 0; i < FILE_MAPS; i++) {
    size_t none = 0;
    if (!atomic_compare_exchange_strong(&file_maps[i].bytes, &none, map->bytes)) continue;
    snprintf(file_maps[i].path, sizeof file_maps[i].path, "%s", path);
    atomic_store(&file_maps[i].data, (uintptr_t)map->data);
    return;
  }
}

static void file_map_forget(const struct wn_map *map) {
  for (int i = 0; i < FILE_MAPS; i++) {
    uintptr_t data = (uintptr_t)map->data;
    if (!atomic_compare_exchange_strong(&file_maps[i].data, &data, 0)) continue;
    atomic_store(&file_maps[i].bytes, 0);
    return;
  }
}

const char *wn_mapped_file(const void *address) {
  for (int i = 0; i < FILE_MAPS; i++) {
    const uintptr_t data = atomic_load(&file_maps[i].data);
    if (data && (uintptr_t)address - data < atomic_load(&file_maps[i].bytes)) return file_maps[i].path;
  }
  return NULL;
}

wn_status wn_map_open(wn_context *ctx, const char *path, struct wn_map *out) {
  *out = (struct wn_map){0};
  int fd;
  uintmax_t bytes;
  WN_TRY(wn_open_file(ctx, path, &fd, &bytes));
  wn_status status = WN_OK;
  if (bytes > (uintmax_t)PTRDIFF_MAX) {
    status = wn_fail(ctx, WN_ERR_IO, "cannot map %s: it is larger than the address space", path);
  } else if (bytes > 0) {
    void *p = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
      status = file_fail_errno(ctx, "map", path, errno);
    else
      *out = (struct wn_map){.data = p, .bytes = (size_t)bytes};
    if (out->data) file_map_remember(out, path);
  }
  close(fd);
  return status;
}

void wn_map_close(struct wn_map *map) {
  if (map->data) file_map_forget(map);
  if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
  *map = (struct wn_map){0};
}

void wn_map_release(const void *data, size_t bytes) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)data + page - 1) / page * page;
  const uintptr_t to = ((uintptr_t)data + bytes) / page * page;
  if (to > from && wn_mapped_file(data)) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

/* Reads a descriptor to its end and closes it. `size` is the expected size, 0 if unknown. */
static wn_status file_read_all(wn_context *ctx, const char *path, int fd, uintmax_t size, size_t limit, char **out,
                               size_t *bytes) {
  wn_status status = WN_OK;
  char *text = NULL;
  if (limit > (size_t)PTRDIFF_MAX) limit = (size_t)PTRDIFF_MAX;
  /* one byte more than the limit shows that a file is too large */
  size_t used = 0, capacity = size == 0 ? 65536 : size > limit ? limit + 1 : (size_t)size + 1;
  if (capacity > limit) capacity = limit + 1;
  WN_TRY_GOTO(WN_ALLOC(ctx, path, capacity + 1, &text), done);
  for (;;) {
    if (used == capacity) {
      if (capacity > limit) break;
      size_t larger = capacity > limit / 2 ? limit + 1 : 2 * capacity;
      WN_TRY_GOTO(WN_RESIZE(ctx, path, &text, used, larger + 1), done);
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

wn_status wn_file_read(wn_context *ctx, const char *path, size_t limit, char **out, size_t *bytes) {
  int fd;
  uintmax_t size;
  *out = NULL;
  *bytes = 0;
  WN_TRY(wn_open_file(ctx, path, &fd, &size));
  return file_read_all(ctx, path, fd, size, limit, out, bytes);
}

wn_status wn_file_load(wn_context *ctx, const char *path, size_t limit, char **text, size_t *bytes) {
  WN_CHECK_CALL(WN_POINTER(path), WN_POINTER(text), WN_POINTER(bytes));
  int fd;
  bool regular;
  uintmax_t size;
  *text = NULL;
  *bytes = 0;
  WN_TRY(wn_open_text(ctx, path, &fd, &regular, &size));
  return file_read_all(ctx, strcmp(path, "-") ? path : "standard input", fd, size, limit ? limit : WN_TEXT_LIMIT, text,
                       bytes);
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

/* Syncs the folder, so that renames in it survive a crash. Some file systems cannot sync folders, and a folder may be
 * writable but not readable: then the order of renames is up to the file system. */
static wn_status file_sync_folder(wn_context *ctx, const char *dir) {
  const int fd = wn_open_folder(dir);
  if (fd < 0) return errno == EACCES ? WN_OK : file_fail_errno(ctx, "sync the folder", dir, errno);
  const int error = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
  close(fd);
  return error ? file_fail_errno(ctx, "sync the folder", dir, error) : WN_OK;
}

/* ---- temporary names ---- */

/* ".NAME.winnow-0123456789ab" in the target's folder. NAME is cut so that the whole stays within 255 bytes. */
#define MARK ".winnow-"
enum { DIGITS = 12, STEM = 200 };

static void file_temporary_stem(const char *path, char *out, size_t bytes) {
  const char *slash = strrchr(path, '/');
  snprintf(out, bytes, ".%.*s" MARK, STEM, slash ? slash + 1 : path);
}

static bool file_is_temporary(const char *name, const char *stem) {
  const size_t n = strlen(stem);
  return strncmp(name, stem, n) == 0 && strlen(name) == n + DIGITS && strspn(name + n, "0123456789abcdef") == DIGITS;
}

/* Removes what killed writers of this file left behind. A writer that is still running holds its lock; then this one is
 * refused. */
static wn_status file_sweep(wn_context *ctx, const char *path, const char *parent, const char *stem) {
  DIR *entries = wn_open_entries(parent);
  if (!entries) return WN_OK; /* the folder is writable but not readable */
  bool busy = false;
  for (struct dirent *entry; !busy && (entry = readdir(entries));) {
    if (!file_is_temporary(entry->d_name, stem)) continue;
    char left[sizeof((struct wn_writer *)0)->temporary];
    uintmax_t bytes;
    int fd;
    if (wn_path_join(NULL, left, sizeof left, parent, entry->d_name) != WN_OK) continue;
    struct stat st;
    if (lstat(left, &st) != 0 || !S_ISREG(st.st_mode) || wn_open_file(NULL, left, &fd, &bytes) != WN_OK) continue;
    busy = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!busy) unlink(left);
    close(fd);
  }
  closedir(entries);
  return busy ? wn_fail(ctx, WN_ERR_IO, "cannot write %s: another process is writing it", path) : WN_OK;
}

/* Creates and locks a new file with a unique name. The lock shows other writers that it is in use. -1: see errno. */
static int file_open_temporary(const char *parent, const char *stem, char *out, size_t bytes) {
  for (int attempt = 0; attempt < 64; attempt++) {
    unsigned char random[DIGITS / 2];
    char name[STEM + 64];
    size_t n = (size_t)snprintf(name, sizeof name, "%s", stem);
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return -1;
    for (size_t i = 0; i < sizeof random; i++) n += (size_t)snprintf(name + n, sizeof name - n, "%02x", random[i]);
    if (wn_path_join(NULL, out, bytes, parent, name) != WN_OK) {
      errno = ENAMETOOLONG;
      return -1;
    }
    const int fd = wn_open_new(out);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return -1;
    /* A file system without locks is accepted. Between open and lock another writer may have removed the file as a
     * left-over: then its name is gone. */
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    struct stat mine, named;
    if (locked && fstat(fd, &mine) == 0 && lstat(out, &named) == 0 && mine.st_ino == named.st_ino &&
        mine.st_dev == named.st_dev)
      return fd;
    close(fd);
  }
  errno = EAGAIN;
  return -1;
}

/* The path with a link at its end resolved. A user who links to another disk wants the file there, and the rename that
 * replaces the file must stay in one folder. */
static wn_status file_follow(wn_context *ctx, const char *path, char *out, size_t bytes) {
  if ((size_t)snprintf(out, bytes, "%s", path) >= bytes)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %.200s...: the path is too long", path);
  struct stat st;
  for (int links = 0; lstat(out, &st) == 0 && S_ISLNK(st.st_mode); links++) {
    char target[4096], parent[4096];
    const ssize_t n = readlink(out, target, sizeof target - 1);
    if (n < 0) return file_fail_errno(ctx, "write", path, errno);
    if (links == 40) return file_fail_errno(ctx, "write", path, ELOOP);
    target[n] = 0;
    file_parent_of(out, parent, sizeof parent);
    if (wn_path_join(NULL, out, bytes, *target == '/' ? "" : parent, target) != WN_OK)
      return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %.200s: the path that it links to is too long", path);
  }
  return WN_OK;
}

wn_status wn_writer_open(wn_context *ctx, const char *path, struct wn_writer *w) {
  w->f = NULL;
  w->bytes = 0;
  w->temporary[0] = 0;
  if (!*path) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write a file without a name");
  WN_TRY(file_follow(ctx, path, w->path, sizeof w->path));
  struct stat st;
  const bool there = stat(w->path, &st) == 0;
  if (there && !S_ISREG(st.st_mode)) /* renaming would replace the device or pipe */
    return wn_fail(ctx, WN_ERR_IO, "cannot write %s: it is %s", path, wn_file_kind(st.st_mode));
  char parent[sizeof w->path], stem[STEM + 32], temporary[sizeof w->temporary];
  file_parent_of(w->path, parent, sizeof parent);
  file_temporary_stem(w->path, stem, sizeof stem);
  WN_TRY(file_sweep(ctx, path, parent, stem));
  const int fd = file_open_temporary(parent, stem, temporary, sizeof temporary);
  if (fd < 0) return file_fail_errno(ctx, "write", path, errno);
  if (there) (void)fchmod(fd, st.st_mode & 0777); /* the file keeps its permissions; some file systems have none */
  if (!(w->f = fdopen(fd, "w"))) {
    const int error = errno;
    unlink(temporary);
    close(fd);
    return file_fail_errno(ctx, "write", path, error);
  }
  memcpy(w->temporary, temporary, sizeof temporary);
  return WN_OK;
}

wn_status wn_writer_reopen(wn_context *ctx, const char *kept, const char *path, uint64_t bytes, struct wn_writer *w) {
  *w = (struct wn_writer){.bytes = bytes};
  if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path ||
      (size_t)snprintf(w->temporary, sizeof w->temporary, "%s", kept) >= sizeof w->temporary)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %.200s...: the path is too long", path);
  const int fd = wn_open_again(kept);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) return file_fail_errno(ctx, "open", kept, errno);
  wn_status status = WN_OK;
  if (st.st_nlink > 1) /* what a stranger has linked here is not changed */
    status = wn_fail(ctx, WN_ERR_IO, "%s: has another name as well; remove it", kept);
  else if ((uint64_t)st.st_size < bytes)
    status = wn_fail(ctx, WN_ERR_FORMAT, "%s: has %llu bytes, %llu were written", kept, (unsigned long long)st.st_size,
                     (unsigned long long)bytes);
  else if (ftruncate(fd, (off_t)bytes) != 0 || lseek(fd, (off_t)bytes, SEEK_SET) < 0 || !(w->f = fdopen(fd, "r+")))
    status = file_fail_errno(ctx, "write", kept, errno);
  if (status == WN_OK) return WN_OK;
  close(fd);
  w->temporary[0] = 0;
  return status;
}

wn_status wn_writer_sync(wn_context *ctx, struct wn_writer *w) {
  if (fflush(w->f) != 0 || ferror(w->f)) return file_fail_errno(ctx, "write", w->path, errno);
  return fsync(fileno(w->f)) == 0 ? WN_OK : file_fail_errno(ctx, "sync", w->path, errno);
}

void wn_writer_keep(struct wn_writer *w) {
  w->temporary[0] = 0;
  wn_writer_abort(w);
}

wn_status wn_writer_write(wn_context *ctx, struct wn_writer *w, const void *data, size_t bytes) {
  if (!w->f) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: the file is not open", w->path);
  if (bytes && fwrite(data, 1, bytes, w->f) != bytes) return file_fail_errno(ctx, "write", w->path, errno);
  w->bytes += bytes;
  return WN_OK;
}

wn_status wn_writer_rewrite(wn_context *ctx, struct wn_writer *w, const void *data, size_t bytes) {
  if (!w->f) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: the file is not open", w->path);
  if (bytes > w->bytes)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: %zu bytes replace its beginning, which has %llu", w->path,
                   bytes, (unsigned long long)w->bytes);
  if (fseeko(w->f, 0, SEEK_SET) != 0 || fwrite(data, 1, bytes, w->f) != bytes)
    return file_fail_errno(ctx, "write", w->path, errno);
  return WN_OK;
}

wn_status wn_writer_commit(wn_context *ctx, struct wn_writer *w) {
  if (!w->f) return wn_fail(ctx, WN_ERR_ARGUMENT, "cannot write %s: the file is not open", w->path);
  WN_TRY(wn_writer_sync(ctx, w));
  /* Rename before closing: the lock must protect the temporary name. */
  if (rename(w->temporary, w->path) != 0) return file_fail_errno(ctx, "rename a temporary file to", w->path, errno);
  w->temporary[0] = 0;
  fclose(w->f);
  w->f = NULL;
  char parent[sizeof w->path];
  file_parent_of(w->path, parent, sizeof parent);
  return file_sync_folder(ctx, parent);
}

void wn_writer_abort(struct wn_writer *w) {
  if (w->temporary[0]) unlink(w->temporary);
  w->temporary[0] = 0;
  if (w->f) fclose(w->f);
  w->f = NULL;
}

static wn_status file_write_directly(wn_context *ctx, const char *path, const void *data, size_t bytes) {
  FILE *f = wn_open_output(path);
  if (!f) return file_fail_errno(ctx, "write", path, errno);
  const bool written = fwrite(data, 1, bytes, f) == bytes && !fflush(f);
  const int error = errno;
  return fclose(f) == 0 && written ? WN_OK : file_fail_errno(ctx, "write", path, error);
}

wn_status wn_file_save(wn_context *ctx, const char *path, const void *data, size_t bytes) {
  WN_CHECK_CALL(WN_POINTER(path), WN_ARRAY(data, bytes));
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

static wn_status file_copy(wn_context *ctx, const char *path, int fd) {
  char part[16384];
  struct wn_writer w;
  wn_status status = wn_writer_open(ctx, path, &w);
  ssize_t n = 1;
  for (off_t at = 0; status == WN_OK && (n = pread(fd, part, sizeof part, at)) > 0; at += n)
    status = wn_writer_write(ctx, &w, part, (size_t)n);
  if (n < 0) status = file_fail_errno(ctx, "read", path, errno);
  if (status == WN_OK) status = wn_writer_commit(ctx, &w);
  if (status != WN_OK) wn_writer_abort(&w);
  return status;
}

wn_status wn_file_own(wn_context *ctx, const char *path, int *fd) {
  struct stat st;
  if (fstat(*fd, &st) != 0) return file_fail_errno(ctx, "look at", path, errno);
  if (st.st_nlink < 2) return WN_OK;
  WN_TRY(file_copy(ctx, path, *fd));
  const int copy = wn_open_append(path);
  if (copy < 0) return file_fail_errno(ctx, "open", path, errno);
  close(*fd);
  *fd = copy;
  return WN_OK;
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
    if (mkdir(part, 0777) == 0) {
      char parent[sizeof part];
      file_parent_of(part, parent, sizeof parent);
      WN_TRY(file_sync_folder(ctx, parent));
    } else if (errno != EEXIST) {
      return file_fail_errno(ctx, "make the folder", part, errno);
    }
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
