/* What a machine's crash can leave of a writer's files, in the manner of ALICE (Pillai et al., OSDI 2014) and
 * CrashMonkey: the calls by which the writer touches the disk are recorded, and possible disks after a crash are built
 * from the record.
 *
 * The model of the disk is the weakest that POSIX allows. Of the calls before the crash any subset may have persisted.
 * But fsync of a file makes its writes persist, and fsync of a folder makes changes of its names persist. A rename
 * persists completely or not at all. A write that need not have persisted may be there in part, or as zeros. For every
 * moment these are tried: everything persisted; only what must; each call alone missing, or alone present in addition;
 * random subsets.
 *
 * On each disk a reader must find the old files or the new ones, never a mixture, before and after the interrupted
 * write is finished or discarded, and the writer must succeed again. Once a writer has returned, the new files must
 * persist.
 *
 * WINNOW_TEST_ALL: all of these; else everything, only what must, and one random subset for each moment.
 * WINNOW_TEST_SEED: other subsets. */
#include "fault/writers.h"

#include "base/rng.h"

enum { NODES = 160, ENTRIES = 48, OPS = 600, ROOT = 0 };

struct node {
  bool folder;
  char *data;
  size_t bytes;
  int count;
  struct {
    char name[80];
    int node;
  } entries[ENTRIES];
};
struct disk {
  int count;
  struct node nodes[NODES];
};
struct op {
  enum call_kind kind;
  int node, dir, to_dir; /* node: the file or folder; dir: its parent; to_dir: the new parent */
  char name[80], to_name[80];
  char *data;
  size_t bytes;
  off_t at;
};
static struct op ops[OPS];
static int op_count;
static struct disk before, live, made; /* before the writer; while it runs; after a crash */

/* ---- the disk ---- */

static int node_new(struct disk *d, bool folder) {
  if (d->count == NODES) fail_msg("more than %d files", NODES);
  struct node *n = &d->nodes[d->count];
  memset(n, 0, sizeof *n);
  n->folder = folder;
  return d->count++;
}
static int entry_find(const struct node *dir, const char *name) {
  for (int i = 0; i < dir->count; i++)
    if (!strcmp(dir->entries[i].name, name)) return i;
  return -1;
}
static void entry_set(struct node *dir, const char *name, int node) {
  int i = entry_find(dir, name);
  if (i < 0 && (i = dir->count++) == ENTRIES) fail_msg("more than %d files in a folder", ENTRIES);
  snprintf(dir->entries[i].name, sizeof dir->entries[i].name, "%s", name);
  dir->entries[i].node = node;
}
/* Removes a name only if it is this file's: earlier calls may not have persisted. */
static void entry_remove(struct node *dir, const char *name, int node) {
  const int i = entry_find(dir, name);
  if (i >= 0 && dir->entries[i].node == node) dir->entries[i] = dir->entries[--dir->count];
}
static void node_write(struct node *n, off_t at, const char *data, size_t bytes) {
  const size_t end = (size_t)at + bytes;
  if (end > n->bytes) {
    n->data = realloc(n->data, end);
    memset(n->data + n->bytes, 0, end - n->bytes);
    n->bytes = end;
  }
  if (data)
    memcpy(n->data + at, data, bytes);
  else
    memset(n->data + at, 0, bytes);
}
static void node_truncate(struct node *n, size_t bytes) {
  if (bytes > n->bytes) node_write(n, (off_t)n->bytes, NULL, bytes - n->bytes);
  n->bytes = bytes;
}
static void disk_copy(struct disk *to, const struct disk *from) {
  for (int i = 0; i < to->count; i++) free(to->nodes[i].data);
  to->count = from->count;
  for (int i = 0; i < from->count; i++) {
    to->nodes[i] = from->nodes[i];
    if (!from->nodes[i].bytes) to->nodes[i].data = NULL;
    if (from->nodes[i].bytes)
      to->nodes[i].data = memcpy(malloc(from->nodes[i].bytes), from->nodes[i].data, from->nodes[i].bytes);
  }
}
static void disk_clear(struct disk *d) {
  static const struct disk none;
  disk_copy(d, &none);
}

/* Finds a path's parent folder, its last name, and its node; -1: there is none. */
static int disk_find(const struct disk *d, const char *path, int *dir, char name[80]) {
  int node = ROOT;
  *dir = -1;
  name[0] = 0;
  path += strlen(writers_root);
  while (*path == '/') {
    const size_t n = strcspn(++path, "/");
    if (n == 0) continue;
    *dir = node;
    snprintf(name, 80, "%.*s", (int)n, path);
    path += n;
    if (node < 0) return -1;
    const int i = entry_find(&d->nodes[node], name);
    node = i < 0 ? -1 : d->nodes[node].entries[i].node;
  }
  return node;
}

static void disk_apply(struct disk *d, const struct op *o) {
  switch (o->kind) {
  case CALL_CREATE:
  case CALL_MKDIR:
    entry_set(&d->nodes[o->dir], o->name, o->node);
    break;
  case CALL_WRITE:
    node_write(&d->nodes[o->node], o->at, o->data, o->bytes);
    break;
  case CALL_TRUNCATE:
    node_truncate(&d->nodes[o->node], (size_t)o->at);
    break;
  case CALL_RENAME:
    entry_remove(&d->nodes[o->dir], o->name, o->node);
    entry_set(&d->nodes[o->to_dir], o->to_name, o->node);
    break;
  case CALL_REMOVE:
    entry_remove(&d->nodes[o->dir], o->name, o->node);
    break;
  case CALL_SYNC:
    break;
  }
}

static void record(enum call_kind kind, const char *a, const char *b, int fd, const void *data, size_t bytes,
                   off_t at) {
  (void)fd;
  if (op_count == OPS) fail_msg("more than %d calls", OPS);
  struct op *o = &ops[op_count];
  memset(o, 0, sizeof *o);
  o->kind = kind;
  o->node = disk_find(&live, a, &o->dir, o->name);
  if (kind == CALL_CREATE || kind == CALL_MKDIR) o->node = node_new(&live, kind == CALL_MKDIR);
  if (o->node < 0) return; /* the file has no name any more */
  if (b) (void)disk_find(&live, b, &o->to_dir, o->to_name);
  o->bytes = bytes;
  o->at = at;
  if (bytes) o->data = memcpy(malloc(bytes), data, bytes);
  disk_apply(&live, o);
  op_count++;
}

static void disk_from_tree(struct disk *d, const struct tree *t) {
  disk_clear(d);
  node_new(d, true);
  for (int i = 0; i < t->count; i++) {
    char path[512], name[80];
    int dir;
    snprintf(path, sizeof path, "%s/%s", writers_root, t->files[i].path);
    (void)disk_find(d, path, &dir, name);
    const int node = node_new(d, t->files[i].folder);
    entry_set(&d->nodes[dir], name, node);
    if (t->files[i].bytes) node_write(&d->nodes[node], 0, t->files[i].data, t->files[i].bytes);
  }
}

static void disk_put_folder(const struct disk *d, int node, const char *path) {
  for (int i = 0; i < d->nodes[node].count; i++) {
    char at[512];
    const struct node *n = &d->nodes[d->nodes[node].entries[i].node];
    snprintf(at, sizeof at, "%.400s/%s", path, d->nodes[node].entries[i].name);
    if (n->folder) {
      assert_int_equal(mkdir(at, 0777), 0);
      disk_put_folder(d, d->nodes[node].entries[i].node, at);
      continue;
    }
    const int fd = open(at, O_WRONLY | O_CREAT | O_EXCL, 0666);
    assert_true(fd >= 0 && write(fd, n->data, n->bytes) == (ssize_t)n->bytes && close(fd) == 0);
  }
}
static void disk_put(const struct disk *d) {
  static const struct tree none;
  tree_put(&none, writers_root);
  disk_put_folder(d, ROOT, writers_root);
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3ULL;
  return hash;
}
/* A hash of everything below `node`, whatever the order of names. */
static uint64_t disk_hash(const struct disk *d, int node, uint64_t start) {
  uint64_t sum = start;
  for (int i = 0; i < d->nodes[node].count; i++) {
    const char *name = d->nodes[node].entries[i].name;
    const struct node *n = &d->nodes[d->nodes[node].entries[i].node];
    const uint64_t named = hash_bytes(start * 31 + n->folder, name, strlen(name));
    sum += n->folder ? disk_hash(d, d->nodes[node].entries[i].node, named) : hash_bytes(named, n->data, n->bytes);
  }
  return sum;
}

/* ---- crashes ---- */

/* Whether call i must have persisted at moment k because of an fsync. */
static bool must_last(int i, int k) {
  const struct op *o = &ops[i];
  for (int j = i + 1; j < k; j++) {
    if (ops[j].kind != CALL_SYNC) continue;
    const int synced = ops[j].node;
    if (o->kind == CALL_WRITE || o->kind == CALL_TRUNCATE
            ? o->node == synced
            : o->dir == synced || (o->kind == CALL_RENAME && o->to_dir == synced))
      return true;
  }
  return false;
}

enum part { NONE, WHOLE, PREFIX, ZEROS };
static uint64_t seed, draws;
static uint64_t draw(uint64_t below) {
  return wn_random_below(seed, WN_STREAM_TEST, draws++, 0, below);
}

/* Builds the disk after a crash at moment k. last[i]: which part of call i persisted. */
static void crash(int k, const enum part *last) {
  disk_copy(&made, &before);
  /* Files have the record's numbers before they have names. */
  for (int i = 0; i < op_count; i++)
    if (ops[i].kind == CALL_CREATE || ops[i].kind == CALL_MKDIR) (void)node_new(&made, ops[i].kind == CALL_MKDIR);
  for (int i = 0; i < k; i++) {
    struct op part = ops[i];
    if (last[i] == NONE) continue;
    if (part.kind == CALL_WRITE && last[i] == PREFIX) part.bytes = part.bytes ? (size_t)draw(part.bytes) : 0;
    if (part.kind == CALL_WRITE && last[i] == ZEROS) part.data = NULL;
    disk_apply(&made, &part);
  }
}

static struct {
  uint64_t *hashes;
  size_t count, room;
} seen;
static bool seen_before(uint64_t hash) {
  for (size_t i = seen.count; i-- > 0;)
    if (seen.hashes[i] == hash) return true;
  if (seen.count == seen.room)
    seen.hashes = realloc(seen.hashes, (seen.room = 2 * seen.room + 64) * sizeof *seen.hashes);
  seen.hashes[seen.count++] = hash;
  return false;
}

static long tried, states;

static const char *moment(int k) {
  static const char *const kinds[] = {"create", "mkdir", "write", "truncate", "rename", "remove", "fsync"};
  static char text[300];
  if (k == 0) return "the start";
  const struct op *o = &ops[k - 1];
  snprintf(text, sizeof text, "call %d of %d (%s %s%s%s)", k, op_count, kinds[o->kind], o->name,
           o->kind == CALL_RENAME ? " to " : "", o->to_name);
  return text;
}

static void examine(const struct writer *w, int k, const char *how, const struct tree *old, const struct tree *new) {
  char bad[400], error[2048], dir[400];
  tried++;
  if (seen_before(disk_hash(&made, ROOT, (uint64_t)(k == op_count) + 1))) return;
  states++;
  disk_put(&made);
  int found = writers_generation(w, writers_root, old, new, bad, sizeof bad);
  if (!found)
    fail_msg("%s: a crash after %s, %s: %s (seed %llu)", w->name, moment(k), how, bad, (unsigned long long)seed);
  if (k == op_count && !(found & 2))
    fail_msg("%s: a crash after its end, %s: the old files are there (seed %llu)", w->name, how,
             (unsigned long long)seed);
  snprintf(dir, sizeof dir, "%s/%s", writers_root, w->dir);
  if (*w->dir && access(dir, F_OK) == 0) {
    wn_context *ctx = tiny_context("ref", 1);
    must(ctx, wn_folder_recover(ctx, dir));
    wn_context_destroy(ctx);
    const int after = writers_generation(w, writers_root, old, new, bad, sizeof bad);
    if (!(after & found))
      fail_msg("%s: a crash after %s, %s: recovered to %s", w->name, moment(k), how, after ? "another" : bad);
  }
  if (states % 8 != 0) return;
  if (writers_call(w->run, error, sizeof error) != WN_OK)
    fail_msg("%s: a crash after %s, %s: afterwards: %s", w->name, moment(k), how, error);
  if (!(writers_generation(w, writers_root, old, new, bad, sizeof bad) & 2))
    fail_msg("%s: a crash after %s, %s: afterwards %s", w->name, moment(k), how, bad);
}

static void crash_at(const struct writer *w, int k, bool all, const struct tree *old, const struct tree *new) {
  static bool forced[OPS];
  static enum part last[OPS];
  for (int i = 0; i < k; i++) forced[i] = must_last(i, k);
  for (int i = 0; i < k; i++) last[i] = WHOLE;
  crash(k, last), examine(w, k, "all has lasted", old, new);
  for (int i = 0; i < k; i++) last[i] = forced[i] ? WHOLE : NONE;
  crash(k, last), examine(w, k, "only what was synced has lasted", old, new);
  for (int u = 0; all && u < k; u++) {
    if (forced[u] || ops[u].kind == CALL_SYNC) continue;
    for (enum part p = NONE; p <= ZEROS; p++) {
      if (p != NONE && p != WHOLE && ops[u].kind != CALL_WRITE) continue;
      char how[60];
      for (int others = 0; others < 2; others++) {
        if (p == (others ? WHOLE : NONE)) continue;
        for (int i = 0; i < k; i++) last[i] = forced[i] || others ? WHOLE : NONE;
        last[u] = p;
        snprintf(how, sizeof how, "call %d part %d, others %s", u + 1, (int)p, others ? "all" : "as synced");
        crash(k, last), examine(w, k, how, old, new);
      }
    }
  }
  for (int r = 0; r < (all ? 6 : 1); r++) {
    for (int i = 0; i < k; i++) last[i] = forced[i] ? WHOLE : (enum part)draw(ops[i].kind == CALL_WRITE ? 4 : 2);
    crash(k, last), examine(w, k, "a random part has lasted", old, new);
  }
}

static void test_crashes(void **state) {
  const struct writer *w = &writers[(intptr_t)*state];
  static struct tree old, new;
  char error[2048];
  const bool all = getenv("WINNOW_TEST_ALL") != NULL;
  const char *given = getenv("WINNOW_TEST_SEED");
  seed = given ? strtoull(given, NULL, 0) : 16;
  draws = 0, seen.count = 0, op_count = 0;
  const long tried_before = tried, states_before = states;
  writers_begin(w, &old, &new);
  disk_from_tree(&before, &old);
  disk_copy(&live, &before);
  calls_begin(writers_root);
  calls.log = record;
  assert_int_equal(writers_call(w->run, error, sizeof error), WN_OK);
  calls_end();
  /* The record is complete: replaying it gives the real disk. */
  static struct tree now;
  tree_take(&now, writers_root);
  disk_put(&live);
  static struct tree again;
  tree_take(&again, writers_root);
  assert_int_equal(now.count, again.count);
  for (int i = 0; i < now.count; i++) {
    const struct tree_file *f = tree_find(&again, now.files[i].path);
    if (!f || f->bytes != now.files[i].bytes || (f->bytes && memcmp(f->data, now.files[i].data, f->bytes) != 0))
      fail_msg("%s: %s is not what the record leads to", w->name, now.files[i].path);
  }
  tree_clear(&now);
  tree_clear(&again);
  for (int k = 0; k <= op_count; k++) crash_at(w, k, all, &old, &new);
  print_message("%s: %d calls, %ld crashes, %ld different disks\n", w->name, op_count, tried - tried_before,
                states - states_before);
  for (int i = 0; i < op_count; i++) free(ops[i].data), ops[i].data = NULL;
  writers_end(&old, &new);
}

static int report(void **state) {
  (void)state;
  print_message("%ld crashes, %ld different disks\n", tried, states);
  disk_clear(&before), disk_clear(&live), disk_clear(&made);
  free(seen.hashes);
  return 0;
}

int main(void) {
  struct CMUnitTest tests[WRITERS];
  for (int i = 0; i < WRITERS; i++)
    tests[i] =
        (struct CMUnitTest){.name = writers[i].name, .test_func = test_crashes, .initial_state = (void *)(intptr_t)i};
  return cmocka_run_group_tests(tests, NULL, report);
}
