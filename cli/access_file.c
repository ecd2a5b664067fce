#include "access_file.h"

#include <errno.h>
#include <string.h>

#include "files.h"
#include "ui.h"

int cli_access_file_open(struct cli_access_file *file, const char *path) {
  *file = (struct cli_access_file){.path = path};
  file->out = strcmp(path, "-") != 0 ? cli_open_append(path) : stderr;
  pthread_mutex_init(&file->lock, NULL);
  return file->out ? 0 : cli_error("%s: %s", path, strerror(errno));
}

void cli_access_file_again(struct cli_access_file *file) {
  if (!file->path || !strcmp(file->path, "-")) return;
  FILE *out = cli_open_append(file->path);
  if (!out) {
    cli_warning("%s: %s; the access log goes on in the old file", file->path, strerror(errno));
    return;
  }
  pthread_mutex_lock(&file->lock);
  FILE *old = file->out;
  file->out = out;
  pthread_mutex_unlock(&file->lock);
  fclose(old);
}

void cli_access_file_write(void *user, const char *lines, size_t bytes) {
  struct cli_access_file *file = user;
  pthread_mutex_lock(&file->lock);
  const bool failed = fwrite(lines, 1, bytes, file->out) < bytes || fflush(file->out) != 0;
  if (failed && !file->failed) cli_warning("%s: %s; lines of the access log are missing", file->path, strerror(errno));
  if (failed) clearerr(file->out);
  file->failed = failed;
  pthread_mutex_unlock(&file->lock);
}

void cli_access_file_close(struct cli_access_file *file) {
  if (!file->path) return;
  if (file->out && file->out != stderr) fclose(file->out);
  pthread_mutex_destroy(&file->lock);
}
