/* Several files of a folder that are replaced as one: checkpoints, models, tokenizers, token files. */
#ifndef WN_IO_FOLDER_H
#define WN_IO_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "winnow/context.h"

/* A save in progress. The new files are written to the folder `next` by any function that writes files. Files with
 * other names stay as they are. */
struct wn_folder {
  char dir[4096], next[4096 + 8];
  int fd, next_fd; /* of dir and of next; -1: not open */
  bool made;       /* dir was created by this save */
  char gone[1024]; /* names that the commit removes, one per line */
};

/* Creates dir if it is missing, finishes or discards an interrupted save in it, and locks it against other writers.
 * Call commit or abort afterwards. */
wn_status wn_folder_begin(wn_context *ctx, const char *dir, struct wn_folder *f);
/* This file is removed with the old generation, unless the new one has it. */
wn_status wn_folder_drop(wn_context *ctx, struct wn_folder *f, const char *name);
/* Moves all files of next into dir. After a failure or a kill, readers that use wn_folder_file see either the old files
 * or the new ones. *committed (may be NULL): whether they see the new ones; set after a failure too. */
wn_status wn_folder_commit(wn_context *ctx, struct wn_folder *f, bool *committed);
/* Removes a hidden folder of dir, which may hold files alone; nothing where there is none. */
wn_status wn_folder_discard(wn_context *ctx, struct wn_folder *f, const char *name);
void wn_folder_abort(struct wn_folder *f); /* after a failure; harmless after a commit */

/* For a file about to be written in a folder that may be a stranger's: refuses a link of that name. */
wn_status wn_folder_refuse_link(wn_context *ctx, const char *dir, const char *name);

/* Finishes or discards an interrupted save; wn_folder_begin does this too. */
wn_status wn_folder_recover(wn_context *ctx, const char *dir);

/* For readers: the path of file `name` in dir's current generation. It is not dir/name while a committed save is
 * unfinished. Nothing is changed, as the folder may belong to somebody else. The file need not exist. */
wn_status wn_folder_file(wn_context *ctx, char *out, size_t out_bytes, const char *dir, const char *name);
bool wn_folder_has(const char *dir, const char *name);
/* Opens several files of one generation, even while another process saves into the folder. If end returns true, all
 * files opened since begin are of one generation; else close them and try again.
 *   struct wn_folder_reading r = {.dir = dir};
 *   while (wn_folder_reading_begin(&r)) { open; if (wn_folder_reading_end(&r)) return; close; }
 * From the second attempt on, the reader locks the folder if no writer holds it; writers then wait. */
struct wn_folder_reading {
  const char *dir;
  uint64_t stamp; /* identifies the generation found */
  int attempts;
  int locked; /* 1 + the descriptor that holds the lock, or 0 */
};
/* False: another process replaced the model in every attempt. */
bool wn_folder_reading_begin(struct wn_folder_reading *r);
bool wn_folder_reading_end(struct wn_folder_reading *r);
/* wn_folder_file for a whole path. */
wn_status wn_folder_path(wn_context *ctx, char *out, size_t out_bytes, const char *path);

#endif
