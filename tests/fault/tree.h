/* A folder of small files held in memory: read from the disk, written back, compared. */
#ifndef WN_TESTS_TREE_H
#define WN_TESTS_TREE_H

#include "train/tiny.h"

#include <sys/stat.h>

enum { TREE_MOST = 96 };
struct tree {
  int count;
  struct tree_file {
    char path[160]; /* relative to the root */
    bool folder;
    char *data;
    size_t bytes;
  } files[TREE_MOST]; /* folders before their contents */
};

static UNUSED void tree_clear(struct tree *t) {
  for (int i = 0; i < t->count; i++) free(t->files[i].data);
  t->count = 0;
}
static UNUSED const struct tree_file *tree_find(const struct tree *t, const char *path) {
  for (int i = 0; i < t->count; i++)
    if (!strcmp(t->files[i].path, path)) return &t->files[i];
  return NULL;
}

static struct tree *tree_taking;
static size_t tree_root_bytes;
static UNUSED int tree_take_entry(const char *path, const struct stat *st, int type, struct FTW *walk) {
  (void)type, (void)walk;
  if (path[tree_root_bytes] == 0) return 0;
  if (tree_taking->count == TREE_MOST) fail_msg("more than %d files", TREE_MOST);
  struct tree_file *f = &tree_taking->files[tree_taking->count++];
  memset(f, 0, sizeof *f);
  snprintf(f->path, sizeof f->path, "%s", path + tree_root_bytes + 1);
  f->folder = S_ISDIR(st->st_mode);
  if (!f->folder && !(f->data = tiny_read("", path, &f->bytes))) fail_msg("cannot read %s", path);
  return 0;
}
static UNUSED void tree_take(struct tree *t, const char *root) {
  t->count = 0;
  tree_taking = t;
  tree_root_bytes = strlen(root);
  nftw(root, tree_take_entry, 16, FTW_PHYS);
}

static size_t tree_empty_bytes;
static UNUSED int tree_empty_entry(const char *path, const struct stat *st, int type, struct FTW *walk) {
  (void)st, (void)type, (void)walk;
  return path[tree_empty_bytes] ? remove(path) : 0;
}
/* Makes the existing folder hold this and nothing else. */
static UNUSED void tree_put(const struct tree *t, const char *root) {
  tree_empty_bytes = strlen(root);
  nftw(root, tree_empty_entry, 16, FTW_DEPTH | FTW_PHYS);
  for (int i = 0; i < t->count; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, t->files[i].path);
    if (t->files[i].folder) {
      if (mkdir(path, 0777) != 0) fail_msg("cannot make %s", path);
      continue;
    }
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, t->files[i].data, t->files[i].bytes) != (ssize_t)t->files[i].bytes || close(fd) != 0)
      fail_msg("cannot write %s", path);
  }
}

#endif
