#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <winnow/tokenizer.h>
#include "ui.h"

#define JSON_LIMIT ((size_t)256 << 20) /* conversations and tables may be large */

void cli_hold_standard(void) {
  for (int fd = 0; fd < 3; fd++)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0) return;
}

int cli_check_output(const char *path, bool stream) {
  if (!path) return 0;
  if (!strcmp(path, "-"))
    return stream ? 0 : cli_error("-: a file is written here, not standard output (a file of that name: ./-)");
  struct stat st;
  if (stat(path, &st) == 0) {
    if (S_ISDIR(st.st_mode)) return cli_error("%s: is a folder, not a file", path);
    if (!S_ISREG(st.st_mode)) return stream ? 0 : cli_error("cannot write %s: it is not a regular file", path);
  }
  const char *slash = strrchr(path, '/');
  char folder[4096] = ".";
  if (slash &&
      snprintf(folder, sizeof folder, "%.*s", slash > path ? (int)(slash - path) : 1, path) >= (int)sizeof folder)
    return cli_error("%s: the path is too long", path);
  if (stat(folder, &st) != 0) return cli_error("cannot write %s: the folder %s: %s", path, folder, strerror(errno));
  if (!S_ISDIR(st.st_mode)) return cli_error("cannot write %s: %s is no folder", path, folder);
  if (access(folder, W_OK) != 0) return cli_error("cannot write %s: the folder %s: %s", path, folder, strerror(errno));
  return 0;
}

int cli_make_folder(const char *path) {
  char part[4096];
  const size_t length = strlen(path);
  if (!length) return cli_error("the folder's name is empty");
  if (length >= sizeof part) return cli_error("%s: the path is too long", path);
  for (size_t i = 1; i <= length; i++) {
    if (path[i] && path[i] != '/') continue;
    memcpy(part, path, i);
    part[i] = 0;
    struct stat st;
    if (mkdir(part, 0777) != 0 && errno != EEXIST)
      return cli_error("cannot create the folder %s: %s", part, strerror(errno));
    if (stat(part, &st) == 0 && !S_ISDIR(st.st_mode))
      return cli_error("cannot create the folder %s: a file of that name exists", part);
  }
  if (access(path, W_OK) != 0) return cli_error("%s: %s", path, strerror(errno));
  return 0;
}

FILE *cli_open_output(const char *path) {
  struct stat st; /* a file that has another name as well is replaced: what is there under that one stays as it is */
  if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink > 1) unlink(path);
  FILE *out = fopen(path, "we");
  if (!out) cli_error("%s: %s", path, strerror(errno));
  return out;
}

uint64_t cli_weights_bytes(const char *path) {
  static const char end[] = ".safetensors";
  struct stat st;
  uint64_t bytes = 0;
  if (stat(path, &st) != 0) return 0;
  if (!S_ISDIR(st.st_mode)) return (uint64_t)st.st_size;
  DIR *folder = opendir(path);
  for (const struct dirent *e; folder && (e = readdir(folder));) {
    const size_t n = strlen(e->d_name), m = sizeof end - 1;
    if (n > m && !strcmp(e->d_name + n - m, end) && fstatat(dirfd(folder), e->d_name, &st, 0) == 0)
      bytes += (uint64_t)st.st_size;
  }
  if (folder) closedir(folder);
  return bytes;
}

FILE *cli_open_append(const char *path) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  FILE *file = fd >= 0 ? fdopen(fd, "a") : NULL;
  if (fd >= 0 && !file) close(fd);
  return file;
}

FILE *cli_create_private(const char *path) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (fd >= 0 && !file) close(fd);
  return file;
}

int cli_read_text(wn_context *ctx, const char *path, char **out, size_t *bytes) {
  const wn_status status = wn_file_load(ctx, path, 0, out, bytes);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

int cli_read_lines(wn_context *ctx, const char *path, char **out) {
  size_t bytes = 0;
  long long line = 1;
  if (cli_read_text(ctx, path, out, &bytes)) return 1;
  const size_t length = strlen(*out);
  if (length == bytes) return 0;
  for (size_t i = 0; i < length; i++) line += (*out)[i] == '\n';
  return cli_error("%s:%lld: a NUL byte; expected lines of text", path, line);
}

char *cli_next_line(char **at, int64_t *number) {
  while (**at) {
    char *line = *at;
    *at += strcspn(line, "\n");
    if (**at) *(*at)++ = 0;
    ++*number;
    if (line[strspn(line, " \t\r")]) return line;
  }
  return NULL;
}

json_t *cli_read_json(const char *path) {
  char *text;
  size_t bytes;
  if (wn_file_load(NULL, path, JSON_LIMIT, &text, &bytes) != WN_OK) return NULL;
  json_t *value = json_loadb(text, bytes, 0, NULL);
  wn_text_free(text);
  return value;
}
