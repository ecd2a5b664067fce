/* Replaces several files of a folder at once.
 *
 * The files must belong together whatever happens during a save, and they must stay at the top of the folder, where
 * other tools look for them. So a save goes through two hidden folders:
 *   1. everything is written and synced into DIR/.next          a kill or a full disk here leaves the old files alone
 *   2. rename(DIR/.next, DIR/.commit)                           the commit point: one atomic operation
 *   3. each file of DIR/.commit is renamed over DIR's, then DIR/.commit is removed
 * Recovery: if DIR/.commit exists, step 3 is run (again); what is left of DIR/.next is removed. At any time the files
 * of .commit (if it exists) on top of those of DIR are one complete generation: before step 2 there is no .commit and
 * DIR is complete; between 2 and the end of 3 every new file is in exactly one of the two places; after 3 all are in
 * DIR. Old files that would be mistaken for part of the new generation (another tokenizer's) are listed in
 * .commit/.gone. They are removed first, then the list, then the other files are moved.
 *
 * Order on disk: the files and .next are synced before step 2; DIR is synced after step 2, after the moves (before
 * .commit is removed), and after the removals (before .gone is removed). Everything else may reach the disk in any
 * order.
 *
 * The folder may come from a stranger. All steps use descriptors of the folders (openat, renameat, unlinkat), opened
 * without following links. .next and .commit may hold only regular files: a link there is refused, so that nothing
 * outside DIR is ever moved or removed. */
#include "io/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/open.h"

#define NEXT ".next"
#define COMMIT ".commit"
#define GONE ".gone"

enum { READER_SECONDS = 1, READER_ATTEMPTS = 1000 };

static wn_status folder_fail(wn_context *ctx, const char *what, const char *dir, const char *sub, const char *name) {
  return wn_fail(ctx, WN_ERR_IO, "cannot %s %s%s%s%s%s: %s", what, dir, *sub ? "/" : "", sub, *name ? "/" : "", name,
                 strerror(errno));
}

static wn_status folder_refuse(wn_context *ctx, const char *dir, const char *sub, const char *name, mode_t mode,
                               const char *expected) {
  const char *is = S_ISLNK(mode) ? "a symbolic link" : wn_file_kind(mode);
  return wn_fail(ctx, WN_ERR_IO, "%s/%s%s%s: is %s, expected %s: not what a save of winnow leaves; remove it", dir, sub,
                 *name ? "/" : "", name, is, expected);
}

/* Some file systems cannot sync folders: then the order is up to them. */
static wn_status folder_sync(wn_context *ctx, int fd, const char *dir, const char *sub) {
  return fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP ? WN_OK : folder_fail(ctx, "sync", dir, sub, "");
}

/* Opens one of the hidden folders; *out is -1 if it does not exist. */
static wn_status folder_open_sub(wn_context *ctx, int fd, const char *dir, const char *sub, int *out) {
  struct stat st;
  *out = -1;
  if (fstatat(fd, sub, &st, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? WN_OK : folder_fail(ctx, "open", dir, sub, "");
  if (!S_ISDIR(st.st_mode)) return folder_refuse(ctx, dir, sub, "", st.st_mode, "a folder");
  *out = wn_open_folder_at(fd, sub);
  return *out >= 0 ? WN_OK : folder_fail(ctx, "open", dir, sub, "");
}

typedef wn_status (*folder_each)(wn_context *ctx, const char *dir, const char *sub, int sub_fd, const char *name,
                                 int dir_fd);

static wn_status folder_check_entry(wn_context *ctx, const char *dir, const char *sub, int sub_fd, const char *name,
                                    int dir_fd) {
  (void)dir_fd;
  struct stat st;
  if (fstatat(sub_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? WN_OK : folder_fail(ctx, "read", dir, sub, name);
  return S_ISREG(st.st_mode) ? WN_OK : folder_refuse(ctx, dir, sub, name, st.st_mode, "a file");
}

static wn_status folder_remove_entry(wn_context *ctx, const char *dir, const char *sub, int sub_fd, const char *name,
                                     int dir_fd) {
  (void)dir_fd;
  return unlinkat(sub_fd, name, 0) == 0 || errno == ENOENT ? WN_OK : folder_fail(ctx, "remove", dir, sub, name);
}

static wn_status folder_move_entry(wn_context *ctx, const char *dir, const char *sub, int sub_fd, const char *name,
                                   int dir_fd) {
  if (renameat(sub_fd, name, dir_fd, name) != 0) return folder_fail(ctx, "rename into place", dir, sub, name);
  /* After a crash, a file system without a journal may leave both names for one file. Renaming then does nothing, so
   * the old name is removed. */
  return folder_remove_entry(ctx, dir, sub, sub_fd, name, dir_fd);
}

/* Calls each() on every entry of a hidden folder. each() removes entries, so with `again` the folder is read until a
 * pass finds none. */
static wn_status folder_walk(wn_context *ctx, const char *dir, const char *sub, int sub_fd, int dir_fd,
                             folder_each each, bool again) {
  const int fd = wn_open_folder_at(sub_fd, ".");
  DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
  if (!entries) {
    const wn_status status = folder_fail(ctx, "read", dir, sub, "");
    if (fd >= 0) close(fd);
    return status;
  }
  wn_status status = WN_OK;
  int found;
  do {
    found = 0;
    rewinddir(entries);
    for (struct dirent *entry; status == WN_OK && (errno = 0, entry = readdir(entries));) {
      if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
      status = each(ctx, dir, sub, sub_fd, entry->d_name, dir_fd);
      found++;
    }
    if (status == WN_OK && errno != 0) status = folder_fail(ctx, "read", dir, sub, "");
  } while (again && status == WN_OK && found > 0);
  closedir(entries);
  return status;
}

/* ---- .commit/.gone: files to remove ---- */

static bool folder_name_is_plain(const char *name) {
  return *name && *name != '.' && !strchr(name, '/') && !strchr(name, '\n');
}

/* Reads the list in .commit, "" if there is none; it may come from a stranger. */
static wn_status folder_read_gone(wn_context *ctx, int commit_fd, const char *dir, char *out, size_t bytes) {
  out[0] = 0;
  const int fd = wn_open_file_at(commit_fd, GONE);
  if (fd < 0) return errno == ENOENT ? WN_OK : folder_fail(ctx, "read", dir, COMMIT, GONE);
  size_t used = 0;
  ssize_t n;
  while ((n = read(fd, out + used, bytes - used)) > 0) used += (size_t)n;
  const int error = errno;
  close(fd);
  errno = error;
  if (n < 0) return folder_fail(ctx, "read", dir, COMMIT, GONE);
  bool good = used < bytes && memchr(out, 0, used) == NULL && (used == 0 || out[used - 1] == '\n');
  for (size_t at = 0; good && at < used; at++) {
    char *end = memchr(out + at, '\n', used - at);
    *end = 0;
    good = folder_name_is_plain(out + at);
    *end = '\n';
    at = (size_t)(end - out);
  }
  if (!good) return wn_fail(ctx, WN_ERR_FORMAT, "%s/" COMMIT "/" GONE ": is no list of file names", dir);
  out[used] = 0;
  return WN_OK;
}

static bool folder_is_gone(const char *list, const char *name) {
  const size_t n = strlen(name);
  for (const char *at = list; *at; at = strchr(at, '\n') + 1)
    if (!strncmp(at, name, n) && at[n] == '\n') return true;
  return false;
}

/* Runs before the moves. The list holds no name that the new generation has. */
static wn_status folder_remove_gone(wn_context *ctx, int fd, int commit_fd, const char *dir) {
  char list[sizeof((struct wn_folder *)0)->gone];
  WN_TRY(folder_read_gone(ctx, commit_fd, dir, list, sizeof list));
  if (!*list) return WN_OK;
  for (char *at = list, *end; (end = strchr(at, '\n')); at = end + 1) {
    *end = 0;
    if (unlinkat(fd, at, 0) != 0 && errno != ENOENT) return folder_fail(ctx, "remove", dir, "", at);
  }
  WN_TRY(folder_sync(ctx, fd, dir, ""));
  return folder_remove_entry(ctx, dir, COMMIT, commit_fd, GONE, fd);
}

/* ---- the two steps of a recovery ---- */

static wn_status folder_discard(wn_context *ctx, int fd, const char *dir, const char *sub) {
  int sub_fd;
  WN_TRY(folder_open_sub(ctx, fd, dir, sub, &sub_fd));
  if (sub_fd < 0) return WN_OK;
  wn_status status = folder_walk(ctx, dir, sub, sub_fd, fd, folder_check_entry, false);
  if (status == WN_OK) status = folder_walk(ctx, dir, sub, sub_fd, fd, folder_remove_entry, true);
  close(sub_fd);
  if (status != WN_OK) return status;
  return unlinkat(fd, sub, AT_REMOVEDIR) == 0 ? WN_OK : folder_fail(ctx, "remove", dir, sub, "");
}

static wn_status folder_publish(wn_context *ctx, int fd, const char *dir) {
  int commit_fd;
  WN_TRY(folder_open_sub(ctx, fd, dir, COMMIT, &commit_fd));
  if (commit_fd < 0) return WN_OK;
  wn_status status = folder_walk(ctx, dir, COMMIT, commit_fd, fd, folder_check_entry, false);
  if (status == WN_OK) status = folder_remove_gone(ctx, fd, commit_fd, dir);
  if (status == WN_OK) status = folder_walk(ctx, dir, COMMIT, commit_fd, fd, folder_move_entry, true);
  if (status == WN_OK) status = folder_sync(ctx, fd, dir, "");
  close(commit_fd);
  if (status != WN_OK) return status;
  return unlinkat(fd, COMMIT, AT_REMOVEDIR) == 0 ? WN_OK : folder_fail(ctx, "remove", dir, COMMIT, "");
}

/* ---- writing ---- */

static wn_status folder_open(wn_context *ctx, const char *dir, int *fd) {
  *fd = wn_open_folder(dir);
  return *fd >= 0 ? WN_OK : folder_fail(ctx, "open the folder", dir, "", "");
}

static void folder_pause(void) {
  nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* A reader holds the lock while it opens files, a writer while it saves. Readers are waited for; another writer is an
 * error. A file system without locks is accepted. */
static wn_status folder_lock_and_recover(wn_context *ctx, int fd, const char *dir) {
  const double until = wn_seconds_now() + READER_SECONDS;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (wn_seconds_now() > until) return wn_fail(ctx, WN_ERR_IO, "%s: another process is saving into this folder", dir);
    folder_pause();
  }
  WN_TRY(folder_publish(ctx, fd, dir));
  return folder_discard(ctx, fd, dir, NEXT);
}

wn_status wn_folder_recover(wn_context *ctx, const char *dir) {
  int fd;
  WN_TRY(folder_open(ctx, dir, &fd));
  const wn_status status = folder_lock_and_recover(ctx, fd, dir);
  close(fd);
  return status;
}

static void folder_close(struct wn_folder *f) {
  if (f->next_fd >= 0) close(f->next_fd);
  if (f->fd >= 0) close(f->fd);
  f->fd = f->next_fd = -1;
}

wn_status wn_folder_begin(wn_context *ctx, const char *dir, struct wn_folder *f) {
  *f = (struct wn_folder){.fd = -1, .next_fd = -1};
  WN_TRY(wn_path_join(ctx, f->next, sizeof f->next, dir, NEXT));
  if ((size_t)snprintf(f->dir, sizeof f->dir, "%s", dir) >= sizeof f->dir)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "the path %.200s... is too long", dir);
  f->made = !wn_path_exists(dir);
  WN_TRY(wn_make_dirs(ctx, dir));
  wn_status status = folder_open(ctx, dir, &f->fd);
  if (status == WN_OK) status = folder_lock_and_recover(ctx, f->fd, dir);
  if (status == WN_OK && mkdirat(f->fd, NEXT, 0777) != 0) status = folder_fail(ctx, "make the folder", dir, NEXT, "");
  if (status == WN_OK) status = folder_open_sub(ctx, f->fd, dir, NEXT, &f->next_fd);
  if (status != WN_OK) folder_close(f);
  return status;
}

wn_status wn_folder_drop(wn_context *ctx, struct wn_folder *f, const char *name) {
  const size_t used = strlen(f->gone), n = strlen(name);
  if (!folder_name_is_plain(name) || used + n + 2 > sizeof f->gone)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: %.200s cannot be replaced", f->dir, name);
  if (!folder_is_gone(f->gone, name)) snprintf(f->gone + used, sizeof f->gone - used, "%s\n", name);
  return WN_OK;
}

/* Writes the list: the dropped names that exist in dir and are not in next. */
static wn_status folder_write_gone(wn_context *ctx, const struct wn_folder *f) {
  char list[sizeof f->gone], name[sizeof f->gone], path[sizeof f->next + 8];
  size_t used = 0;
  struct stat st;
  for (const char *at = f->gone, *end; (end = strchr(at, '\n')); at = end + 1) {
    snprintf(name, sizeof name, "%.*s", (int)(end - at), at);
    const bool there = fstatat(f->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
    const bool made = fstatat(f->next_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (there && !made) used += (size_t)snprintf(list + used, sizeof list - used, "%s\n", name);
  }
  if (used == 0) return WN_OK;
  WN_TRY(wn_path_join(ctx, path, sizeof path, f->next, GONE));
  return wn_file_write(ctx, path, list, used);
}

wn_status wn_folder_commit(wn_context *ctx, struct wn_folder *f, bool *committed) {
  bool local;
  if (!committed) committed = &local;
  *committed = false;
  wn_status status = folder_write_gone(ctx, f);
  if (status == WN_OK) status = folder_sync(ctx, f->next_fd, f->dir, NEXT);
  if (status == WN_OK && renameat(f->fd, NEXT, f->fd, COMMIT) != 0)
    status = folder_fail(ctx, "commit", f->dir, NEXT, "");
  if (status != WN_OK) return status;
  *committed = true;
  status = folder_sync(ctx, f->fd, f->dir, "");
  if (status == WN_OK) status = folder_publish(ctx, f->fd, f->dir);
  folder_close(f);
  return status;
}

wn_status wn_folder_discard(wn_context *ctx, struct wn_folder *f, const char *name) {
  return f->fd < 0 ? WN_OK : folder_discard(ctx, f->fd, f->dir, name);
}

void wn_folder_abort(struct wn_folder *f) {
  if (f->fd < 0) return;
  folder_discard(NULL, f->fd, f->dir, NEXT); /* frees space on a full disk */
  if (f->made) (void)rmdir(f->dir);          /* if it is still empty */
  folder_close(f);
}

wn_status wn_folder_refuse_link(wn_context *ctx, const char *dir, const char *name) {
  char path[4096];
  struct stat st;
  WN_TRY(wn_path_join(ctx, path, sizeof path, dir, name));
  if (lstat(path, &st) != 0 || !S_ISLNK(st.st_mode)) return WN_OK;
  return wn_fail(ctx, WN_ERR_IO, "%s: is a symbolic link, which is not followed here; remove it", path);
}

/* ---- reading ---- */

wn_status wn_folder_file(wn_context *ctx, char *out, size_t out_bytes, const char *dir, const char *name) {
  char list[sizeof((struct wn_folder *)0)->gone];
  struct stat st;
  WN_TRY(wn_path_join(ctx, out, out_bytes, dir, COMMIT));
  if (lstat(out, &st) != 0) {
    if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG && errno != EACCES)
      return folder_fail(ctx, "open", dir, COMMIT, "");
    return wn_path_join(ctx, out, out_bytes, dir, name);
  }
  if (!S_ISDIR(st.st_mode)) return folder_refuse(ctx, dir, COMMIT, "", st.st_mode, "a folder");
  const int fd = wn_open_folder_at(AT_FDCWD, out);
  if (fd < 0 && errno == ENOENT) return wn_path_join(ctx, out, out_bytes, dir, name); /* finished meanwhile */
  if (fd < 0) return folder_fail(ctx, "open", dir, COMMIT, "");
  wn_status status = WN_OK;
  const bool there = fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
  if (there && !S_ISREG(st.st_mode)) status = folder_refuse(ctx, dir, COMMIT, name, st.st_mode, "a file");
  if (!there && errno != ENOENT) status = folder_fail(ctx, "open", dir, COMMIT, name);
  list[0] = 0;
  if (status == WN_OK && !there) status = folder_read_gone(ctx, fd, dir, list, sizeof list);
  close(fd);
  if (status != WN_OK) return status;
  if (!there && !folder_is_gone(list, name)) return wn_path_join(ctx, out, out_bytes, dir, name);
  char inside[sizeof list];
  WN_TRY(wn_path_join(ctx, inside, sizeof inside, COMMIT, name));
  return wn_path_join(ctx, out, out_bytes, dir, inside);
}

bool wn_folder_has(const char *dir, const char *name) {
  char path[4096];
  return wn_folder_file(NULL, path, sizeof path, dir, name) == WN_OK && wn_path_exists(path);
}

/* Changes when another process replaces the generation. */
static uint64_t folder_stamp(const char *dir) {
  static const char *const names[] = {"config.json",    "model.safetensors", "model.safetensors.index.json",
                                      "tokenizer.json", "tokenizer.model",   "tokenizer_config.json"};
  uint64_t stamp = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[4096];
    struct stat st;
    uint64_t parts[5] = {0};
    if (wn_folder_file(NULL, path, sizeof path, dir, names[i]) == WN_OK && stat(path, &st) == 0) {
      parts[0] = (uint64_t)st.st_dev, parts[1] = (uint64_t)st.st_ino, parts[2] = (uint64_t)st.st_size;
      parts[3] = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
      parts[4] = strlen(path); /* before and after a commit's move the same file has different paths */
    }
    for (int k = 0; k < 5; k++) stamp = (stamp ^ parts[k] ^ (stamp >> 29)) * 0x100000001b3ULL;
  }
  return stamp;
}

/* Gives up after READER_ATTEMPTS: a writer that saves again and again could keep a slow reader waiting for ever. */
bool wn_folder_reading_begin(struct wn_folder_reading *r) {
  if (r->attempts == READER_ATTEMPTS) return false;
  if (r->attempts++ > 0) {
    const int fd = wn_open_folder(r->dir);
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0) {
      r->locked = fd + 1;
    } else {
      if (fd >= 0) close(fd);
      folder_pause();
    }
  }
  r->stamp = folder_stamp(r->dir);
  return true;
}

bool wn_folder_reading_end(struct wn_folder_reading *r) {
  const bool whole = folder_stamp(r->dir) == r->stamp; /* despite the lock, which older versions ignore */
  if (r->locked) close(r->locked - 1);
  r->locked = 0;
  return whole;
}

wn_status wn_folder_path(wn_context *ctx, char *out, size_t out_bytes, const char *path) {
  char dir[4096] = ".";
  const char *slash = strrchr(path, '/');
  const size_t n = slash ? (size_t)(slash - path) + 1 : 0;
  if (n >= sizeof dir) return wn_fail(ctx, WN_ERR_ARGUMENT, "the path %.200s... is too long", path);
  if (slash) snprintf(dir, sizeof dir, "%.*s", (int)n, path);
  WN_TRY(wn_folder_file(ctx, out, out_bytes, dir, path + n));
  /* The path as it was given, unless an interrupted save has put the file elsewhere. */
  return strstr(out + (slash ? n : 2), "/") ? WN_OK : wn_path_join(ctx, out, out_bytes, "", path);
}
