/* The file of winnow serve's access log. */
#ifndef CLI_ACCESS_FILE_H
#define CLI_ACCESS_FILE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct cli_access_file {
  const char *path; /* "-": standard error */
  pthread_mutex_t lock;
  FILE *out;
  bool failed; /* the last write failed, and this has been said */
};
/* Opens the file for lines at its end. 0, or 1 after reporting. */
int cli_access_file_open(struct cli_access_file *file, const char *path);
/* Opens the path again, under which there may be another file by now; if that fails the old one stays. */
void cli_access_file_again(struct cli_access_file *file);
void cli_access_file_write(void *file, const char *lines, size_t bytes); /* of wn_server_options.access */
void cli_access_file_close(struct cli_access_file *file);                /* a zeroed struct is allowed */

#endif
