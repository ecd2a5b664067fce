/* Inputs of wn_data_prepare; see inputs.h. */
#include "data/inputs.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/open.h"
#include "base/text.h"

static bool inputs_named(const char *path, const char *const ends[3]) {
  for (int i = 0; i < 3; i++)
    if (wn_ends_with(path, ends[i])) return true;
  return false;
}

bool wn_input_is_jsonl(const char *path) {
  return inputs_named(path, (const char *const[3]){".jsonl", ".jsonl.gz", ".jsonl.zst"});
}

static wn_status inputs_add(wn_context *ctx, const char *path, struct wn_inputs *out) {
  WN_TRY(WN_GROW(ctx, "inputs", &out->paths, out->count, 1, &out->capacity));
  if (!(out->paths[out->count] = wn_strdup(ctx, path))) return WN_ERR_MEMORY;
  out->count++;
  return WN_OK;
}

static wn_status inputs_add_folder(wn_context *ctx, const char *folder, struct wn_inputs *out) {
  DIR *entries = wn_open_entries(folder);
  if (!entries) return wn_fail(ctx, WN_ERR_IO, "%s: cannot read the folder: %s", folder, strerror(errno));
  wn_status status = WN_OK;
  for (struct dirent *e; status == WN_OK && (errno = 0, e = readdir(entries));) {
    char path[4096];
    struct stat st;
    if (e->d_name[0] == '.') continue;
    status = wn_path_join(ctx, path, sizeof path, folder, e->d_name);
    if (status != WN_OK) break;
    if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
      status = inputs_add_folder(ctx, path, out);
    else if (wn_path_is_dir(path)) /* it may lead back to a folder above */
      status = wn_fail(ctx, WN_ERR_ARGUMENT, "%s: a link to a folder, which is not followed; name that folder", path);
    else if (wn_input_is_jsonl(path) || inputs_named(path, (const char *const[3]){".txt", ".txt.gz", ".txt.zst"}))
      status = inputs_add(ctx, path, out);
    else
      status =
          wn_fail(ctx, WN_ERR_FORMAT,
                  "%s: in a folder, names of texts end in .txt or .jsonl, packed ones also in .gz or .zst; take it "
                  "out, or name the files themselves",
                  path);
  }
  if (status == WN_OK && errno) status = wn_fail(ctx, WN_ERR_IO, "%s: cannot read the folder", folder);
  closedir(entries);
  return status;
}

static int inputs_compare(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

wn_status wn_inputs_list(wn_context *ctx, const char *const *names, int count, struct wn_inputs *out) {
  *out = (struct wn_inputs){0};
  for (int i = 0; i < count; i++) {
    if (!wn_path_is_dir(names[i])) {
      WN_TRY(inputs_add(ctx, names[i], out));
      continue;
    }
    const size_t first = out->count;
    WN_TRY(inputs_add_folder(ctx, names[i], out));
    if (out->count == first)
      return wn_fail(ctx, WN_ERR_FORMAT, "%s: no files in the folder, .txt or .jsonl were expected", names[i]);
    qsort(out->paths + first, out->count - first, sizeof *out->paths, inputs_compare);
  }
  return WN_OK;
}

wn_status wn_inputs_match(wn_context *ctx, const char *path, struct wn_inputs *out) {
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  char folder[4096], file[4096];
  *out = (struct wn_inputs){0};
  if (!strchr(name, '*') || wn_path_exists(path)) return inputs_add(ctx, path, out);
  if (snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path) >= (int)sizeof folder)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "%.200s...: the path is too long", path);
  DIR *entries = wn_open_entries(slash ? folder : ".");
  if (!entries) return wn_fail(ctx, WN_ERR_IO, "%s: cannot read the folder: %s", path, strerror(errno));
  wn_status status = WN_OK;
  for (struct dirent *e; status == WN_OK && (e = readdir(entries));) {
    if (fnmatch(name, e->d_name, FNM_PERIOD) != 0) continue;
    if (snprintf(file, sizeof file, "%s%s", folder, e->d_name) < (int)sizeof file) status = inputs_add(ctx, file, out);
  }
  closedir(entries);
  if (status == WN_OK && out->count == 0) status = wn_fail(ctx, WN_ERR_IO, "%s: no file has such a name", path);
  if (status == WN_OK) qsort(out->paths, out->count, sizeof *out->paths, inputs_compare);
  return status;
}

void wn_inputs_clear(struct wn_inputs *inputs) {
  for (size_t i = 0; i < inputs->count; i++) wn_free(inputs->paths[i]);
  wn_free(inputs->paths);
  *inputs = (struct wn_inputs){0};
}
