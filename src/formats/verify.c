/* Compares files with their checksums, one after the other. A file's kind follows from its first bytes. These may be
 * damaged, so in a folder the file's name counts too. */
#include "winnow/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/file.h"
#include "base/misuse.h"
#include "base/open.h"
#include "winnow/data.h"
#include "winnow/gguf.h"
#include "winnow/safetensors.h"

enum { VERIFY_PATH_BYTES = 4096, MOST_FILES = 10000 };
enum verify_kind { VERIFY_NONE, VERIFY_SAFETENSORS, VERIFY_GGUF, VERIFY_TOKENS };

const char *wn_file_state_name(wn_file_state state) {
  static const char *const names[] = {"ok", "no checksum", "damaged", "unreadable"};
  return (unsigned)state < sizeof names / sizeof *names ? names[state] : NULL;
}

static bool verify_ends(const char *name, const char *suffix) {
  const size_t n = strlen(name), m = strlen(suffix);
  return n > m && strcmp(name + n - m, suffix) == 0;
}

/* The kind of a .bin file. Other programs call weights .bin, so a token file must begin like one or lie in a folder of
 * prepared data. */
static enum verify_kind verify_begins_as(const char *path) {
  uint32_t head[6] = {0};
  int fd;
  uintmax_t bytes;
  if (wn_open_file(NULL, path, &fd, &bytes) != WN_OK) return VERIFY_NONE;
  const bool all = read(fd, head, sizeof head) == (ssize_t)sizeof head;
  close(fd);
  if (all && memcmp(head, "GGUF", 4) == 0) return VERIFY_GGUF;
  const bool tokens = head[0] == 20240520 || head[0] == 20240801 || memcmp(&head[4], "wn-xxh3\n", 8) == 0;
  return all && tokens ? VERIFY_TOKENS : VERIFY_NONE;
}

static enum verify_kind verify_kind_of(const char *path, bool named) {
  const char *slash = strrchr(path, '/');
  char folder[VERIFY_PATH_BYTES];
  if (verify_ends(path, ".safetensors")) return VERIFY_SAFETENSORS;
  if (verify_ends(path, ".gguf")) return VERIFY_GGUF;
  const enum verify_kind kind = verify_begins_as(path);
  if (kind != VERIFY_NONE) return kind;
  if (named) return VERIFY_TOKENS;
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
  return verify_ends(path, ".bin") && wn_path_has(folder, "data.json") ? VERIFY_TOKENS : VERIFY_NONE;
}

static wn_status verify_file(wn_context *ctx, const char *path, enum verify_kind kind, bool *has) {
  wn_safetensors *tensors = NULL;
  wn_gguf *gguf = NULL;
  wn_token_file *tokens = NULL;
  wn_status status;
  if (kind == VERIFY_SAFETENSORS) {
    status = wn_safetensors_open(ctx, path, &tensors);
    if (status == WN_OK) status = wn_safetensors_verify(ctx, tensors, has);
  } else if (kind == VERIFY_GGUF) {
    status = wn_gguf_open(ctx, path, &gguf);
    if (status == WN_OK) status = wn_gguf_verify(ctx, gguf, has);
  } else {
    status = wn_token_file_open(ctx, path, &tokens);
    if (status == WN_OK) status = wn_token_file_verify(ctx, tokens, has);
  }
  wn_safetensors_close(tensors);
  wn_gguf_close(gguf);
  wn_token_file_close(tokens);
  return status;
}

struct verify_walk {
  wn_context *ctx;
  wn_verify_fn report;
  void *user;
  wn_status first;
  char error[sizeof((wn_context *)0)->error];
  bool stopped;
};

static void verify_one(struct verify_walk *w, const char *path, enum verify_kind kind) {
  static const char *const kinds[] = {"", "safetensors", "GGUF", "tokens"};
  struct stat st;
  bool has = false;
  const wn_status status = verify_file(w->ctx, path, kind, &has);
  const char *error = wn_context_error(w->ctx);
  const size_t n = strlen(path);
  if (status != WN_OK && w->first == WN_OK) {
    w->first = status;
    snprintf(w->error, sizeof w->error, "%s", error);
  }
  const wn_file_report report = {.path = path,
                                 .kind = kinds[kind],
                                 .bytes = stat(path, &st) == 0 ? (uint64_t)st.st_size : 0,
                                 .state = status == WN_ERR_FORMAT ? WN_FILE_DAMAGED
                                          : status != WN_OK       ? WN_FILE_UNREADABLE
                                          : has                   ? WN_FILE_OK
                                                                  : WN_FILE_NO_CHECKSUM,
                                 .detail = status == WN_OK ? ""
                                           : strncmp(error, path, n) == 0 && strncmp(error + n, ": ", 2) == 0
                                               ? error + n + 2
                                               : error};
  if (w->report && !w->report(w->user, &report)) w->stopped = true;
}

static int verify_compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Lists the paths of the folder's files that have a kind: names [*count], each wn_strdup'd. */
static wn_status verify_list(wn_context *ctx, const char *folder, char **names, int *count) {
  DIR *entries = wn_open_entries(folder);
  if (!entries) return wn_fail(ctx, WN_ERR_IO, "cannot read the folder %s", folder);
  wn_status status = WN_OK;
  for (struct dirent *e; status == WN_OK && (e = readdir(entries));) {
    char path[VERIFY_PATH_BYTES];
    if (e->d_name[0] == '.') continue; /* "." and "..", and files that are still being written */
    status = wn_path_join(ctx, path, sizeof path, folder, e->d_name);
    if (status != WN_OK || wn_path_is_dir(path) || verify_kind_of(path, false) == VERIFY_NONE) continue;
    if (*count == MOST_FILES) {
      status = wn_fail(ctx, WN_ERR_ARGUMENT, "%s: more than %d files", folder, MOST_FILES);
    } else if (!(names[*count] = wn_strdup(ctx, path))) {
      status = WN_ERR_MEMORY;
    } else {
      ++*count;
    }
  }
  closedir(entries);
  if (*count) qsort(names, (size_t)*count, sizeof *names, verify_compare_names);
  if (status == WN_OK && *count == 0)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%s: no safetensors, GGUF or token file is in the folder", folder);
  return status;
}

wn_status wn_verify(wn_context *ctx, const char *path, wn_verify_fn report, void *user) {
  WN_CHECK_CALL(WN_POINTER(path));
  if (!ctx || !path) return wn_fail(ctx, WN_ERR_ARGUMENT, "wn_verify needs a context and a path");
  struct verify_walk w = {.ctx = ctx, .report = report, .user = user};
  if (!wn_path_is_dir(path)) {
    int fd;
    uintmax_t bytes;
    WN_TRY(wn_open_file(ctx, path, &fd, &bytes)); /* a missing file has no state */
    close(fd);
    verify_one(&w, path, verify_kind_of(path, true));
  } else {
    int count = 0;
    char **names;
    WN_TRY(WN_ALLOC(ctx, "names of files", MOST_FILES, &names));
    const wn_status status = verify_list(ctx, path, names, &count);
    for (int i = 0; i < count && status == WN_OK && !w.stopped; i++)
      verify_one(&w, names[i], verify_kind_of(names[i], false));
    for (int i = 0; i < count; i++) wn_free(names[i]);
    wn_free(names);
    WN_TRY(status);
  }
  return w.first == WN_OK ? WN_OK : wn_fail(ctx, w.first, "%s", w.error);
}
