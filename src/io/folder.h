/* Several files of a folder that are replaced as one: checkpoints, models, tokenizers, token files. */
#ifndef WN_IO_FOLDER_H
#define WN_IO_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "winnow/context.h"

/* A save in progress. The files of the new generation are written to `next` by whatever writes files; what the folder
 * holds under other names stays. */
struct wn_folder {
  char dir[4096], next[4096 + 8];
  int fd, next_fd; /* of the two folders; -1 */
  bool made;       /* dir was not there before */
  char gone[1024]; /* names that the commit removes, a line each */
};

/* Makes dir where it is missing, finishes or discards a save that was interrupted there, and locks dir against other
 * writers. Afterwards commit or abort. */
wn_status wn_folder_begin(wn_context *ctx, const char *dir, struct wn_folder *f);
/* This file goes with the old generation, unless the new one has it. */
wn_status wn_folder_drop(wn_context *ctx, struct wn_folder *f, const char *name);
/* Puts all files of next into dir. A failure or a kill at any instant leaves the old files or the new ones, for whoever
 * reads by wn_folder_file. *committed (may be NULL): whether the new ones are what a reader finds, after a failure too.
 */
wn_status wn_folder_commit(wn_context *ctx, struct wn_folder *f, bool *committed);
void wn_folder_abort(struct wn_folder *f); /* after a failure, and harmless after a commit */

/* Refuses a link in the place of a file that is about to be written in a folder that may be somebody else's. */
wn_status wn_folder_refuse_link(wn_context *ctx, const char *dir, const char *name);

/* Finishes or discards an interrupted save; begin does it as well. */
wn_status wn_folder_recover(wn_context *ctx, const char *dir);

/* Readers: where file `name` of dir's current generation is, which is not dir/name while a save that was committed has
 * not been finished. Nothing is changed: a folder that is read may belong to somebody else. The file need not exist. */
wn_status wn_folder_file(wn_context *ctx, char *out, size_t out_bytes, const char *dir, const char *name);
bool wn_folder_has(const char *dir, const char *name);
/* Several files of a model that belong together, whoever saves into the folder meanwhile: what is opened between begin
 * and end is of one generation where end says so, else it is given up and opened again.
 *   struct wn_folder_reading r = {.dir = dir};
 *   while (wn_folder_reading_begin(&r)) { open; if (wn_folder_reading_end(&r)) return; close; }
 * From the second attempt on a reader keeps writers out while it opens, where no writer is at work: they wait. */
struct wn_folder_reading {
  const char *dir;
  uint64_t stamp; /* which generation is found */
  int attempts;
  int locked; /* 1 + the descriptor that holds the lock, or 0 */
};
/* false: another process has replaced the model all the time. */
bool wn_folder_reading_begin(struct wn_folder_reading *r);
bool wn_folder_reading_end(struct wn_folder_reading *r);
/* The same for a whole path. */
wn_status wn_folder_path(wn_context *ctx, char *out, size_t out_bytes, const char *path);

#endif
