/* nvrtc_find.c: finds the NVRTCs of a machine, their builds, and which of them work, without loading them
 * where possible. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gen/nvrtc/nvrtc.h"

/* Searched places without an NVRTC, for the message. */
typedef struct tried {
  char text[400];
  size_t size;
} tried;

static void tried_add(tried *t, const char *what) {
  const int n = snprintf(t->text + t->size, sizeof t->text - t->size, "%s%s", t->size == 0 ? "" : ", ", what);
  if (n > 0 && t->size + (size_t)n < sizeof t->text)
    t->size += (size_t)n;
  else
    t->text[t->size] = 0; /* full: keeps whole names only */
}

/* Reads the GNU build id, which every release of NVRTC has, from the ELF notes. */
static bool read_build_id(FILE *f, char *out, size_t out_size) {
  Elf64_Ehdr head;
  if (fread(&head, sizeof head, 1, f) != 1 || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof(Elf64_Phdr)) return false;
  for (unsigned i = 0; i < head.e_phnum; i++) {
    Elf64_Phdr segment;
    if (fseek(f, (long)(head.e_phoff + i * sizeof segment), SEEK_SET) != 0) return false;
    if (fread(&segment, sizeof segment, 1, f) != 1) return false;
    struct {
      Elf64_Nhdr head;
      char name[4];
      unsigned char id[20];
    } note;
    if (segment.p_type != PT_NOTE || segment.p_filesz < sizeof note) continue;
    if (fseek(f, (long)segment.p_offset, SEEK_SET) != 0 || fread(&note, sizeof note, 1, f) != 1) return false;
    if (note.head.n_type != NT_GNU_BUILD_ID || memcmp(note.name, "GNU", 4) != 0 || note.head.n_descsz < 20) continue;
    for (size_t j = 0; j < sizeof note.id && 2 * j + 2 < out_size; j++) snprintf(out + 2 * j, 3, "%02x", note.id[j]);
    return true;
  }
  return false;
}

/* Checks the file at `path`. Fills *out, or *why with what is wrong. Does not open a pipe, which would wait
 * for its writer. */
static bool look_at(const char *path, nvrtc_file *out, const char **why) {
  struct stat st;
  errno = 0;
  const bool found = stat(path, &st) == 0;
  FILE *f = found && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
  if (f == NULL) {
    *why = found && S_ISDIR(st.st_mode)    ? "is a folder"
           : found && !S_ISREG(st.st_mode) ? "is not a regular file"
           : errno == ENOENT               ? "there is no such file"
                                           : strerror(errno);
    return false;
  }
  snprintf(out->path, sizeof out->path, "%s", path);
  char id[48];
  if (read_build_id(f, id, sizeof id))
    snprintf(out->identity, sizeof out->identity, "build %s", id);
  else
    snprintf(out->identity, sizeof out->identity, "file of %lld bytes, changed at %lld", (long long)st.st_size,
             (long long)st.st_mtime);
  fclose(f);
  return true;
}

/* Checks that all of its segments lie in the file: the loader does not, and accesses missing pages. */
static bool is_whole(FILE *f, const Elf64_Ehdr *head) {
  struct stat st;
  if (fstat(fileno(f), &st) != 0 || head->e_phentsize != sizeof(Elf64_Phdr)) return false;
  for (unsigned i = 0; i < head->e_phnum; i++) {
    Elf64_Phdr segment;
    if (fseek(f, (long)(head->e_phoff + i * sizeof segment), SEEK_SET) != 0) return false;
    if (fread(&segment, sizeof segment, 1, f) != 1) return false;
    const uint64_t size = (uint64_t)st.st_size;
    if (segment.p_filesz > size || segment.p_offset > size - segment.p_filesz) return false;
  }
  return true;
}

/* Says why a file cannot be a shared library for this machine, without loading it; NULL: it may be one. */
static const char *refuse_file(const char *path) {
  Elf64_Ehdr head;
  FILE *f = fopen(path, "rb");
  const bool read = f != NULL && fread(&head, sizeof head, 1, f) == 1;
  const bool is_elf = read && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0;
  const bool whole = is_elf && (head.e_ident[EI_CLASS] != ELFCLASS64 || is_whole(f, &head));
  if (f != NULL) fclose(f);
  if (!is_elf) return "is no shared library";
  if (!whole) return "is cut short";
#if defined(__x86_64__)
  const bool same = head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_machine == EM_X86_64;
#elif defined(__aarch64__)
  const bool same = head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_machine == EM_AARCH64;
#else
  const bool same = true; /* loading it will tell */
#endif
  return same ? NULL : "is for another architecture";
}

/* 13 for libnvrtc.so.13.0.48, after resolving links; 0: the name does not say. */
static int major_of(const char *path) {
  static const char stem[] = "libnvrtc.so.";
  char *real = realpath(path, NULL);
  const char *slash = real != NULL ? strrchr(real, '/') : NULL;
  const char *name = slash != NULL ? slash + 1 : "";
  int major = 0;
  if (strncmp(name, stem, sizeof stem - 1) == 0)
    for (const char *c = name + sizeof stem - 1; *c >= '0' && *c <= '9' && major < 1000; c++)
      major = 10 * major + (*c - '0');
  free(real);
  return major;
}

/* A driver loads cubins of its own major version of CUDA and of earlier ones; it compiles PTX of versions no
 * newer than itself. minor -1: unknown, and no reason to refuse. */
static bool is_too_new(const nvrtc_search *s, int major, int minor) {
  if (s->driver_version <= 0 || major <= 0) return false;
  if (major != s->driver_version / 1000) return major > s->driver_version / 1000;
  return s->is_ptx && minor > s->driver_version % 1000 / 10;
}

static void explain_too_new(const nvrtc_search *s, int major, int minor, char *out, size_t size) {
  char version[32], needed[32];
  snprintf(version, sizeof version, minor >= 0 ? "%d.%d" : "%d", major, minor);
  snprintf(needed, sizeof needed, s->is_ptx && minor >= 0 ? "%d.%d" : "%d", major, minor);
  snprintf(out, size, "is NVRTC %s, whose %s needs a driver of CUDA %s, and this one is of CUDA %d.%d", version,
           s->is_ptx ? "PTX" : "code", needed, s->driver_version / 1000, s->driver_version % 1000 / 10);
}

static void add_failed(nvrtc_search *s, const char *text) {
  const size_t used = strlen(s->failed);
  const int n = snprintf(s->failed + used, sizeof s->failed - used, "%s%s", used > 0 ? "; " : "", text);
  if (n > 0 && used + (size_t)n >= sizeof s->failed) s->failed[used] = 0; /* whole reasons only */
}

static void add_reason(nvrtc_search *s, const char *path, const char *why) {
  char text[640];
  snprintf(text, sizeof text, "'%s': %s", path, why);
  add_failed(s, text);
}

static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
enum { NUM_NAMES = sizeof names / sizeof names[0] };

/* One walk over all candidates in their order. */
typedef struct walk {
  nvrtc_search *search;
  int number; /* number of candidates so far */
  nvrtc_file *out;
  tried tried;
} walk;

/* Handles a candidate that exists; true: use it. */
static bool consider(walk *w, const char *path) {
  nvrtc_search *s = w->search;
  char text[200];
  if (w->number++ < s->next) return false;
  s->next = w->number;
  const char *why = refuse_file(path);
  const int major = major_of(path);
  if (why == NULL && is_too_new(s, major, -1)) {
    explain_too_new(s, major, -1, text, sizeof text);
    why = text;
  }
  if (why == NULL) return true;
  add_reason(s, path, why);
  return false;
}

static bool is_same_file(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool look_in(walk *w, const char *folder, const char *sub) {
  char path[NUM_NAMES][512];
  const char *why;
  int count = 0;
  if (folder == NULL || folder[0] == 0) return false;
  for (int i = 0; i < NUM_NAMES; i++) {
    const int n = snprintf(path[count], sizeof path[count], "%s%s/%s", folder, sub, names[i]);
    if (n <= 0 || (size_t)n >= sizeof path[count] || !look_at(path[count], w->out, &why)) continue;
    bool again = false; /* libnvrtc.so is a link to another of the names */
    for (int j = 0; j < count; j++) again |= is_same_file(path[j], path[count]);
    if (!again && consider(w, path[count])) return true;
    count += !again;
  }
  if (count > 0) return false;
  snprintf(path[0], sizeof path[0], "%s%s", folder, sub);
  tried_add(&w->tried, path[0]);
  return false;
}

static bool look_in_list(walk *w, const char *list) {
  while (list != NULL && *list != 0) {
    const size_t n = strcspn(list, ":");
    char folder[512];
    if (n > 0 && n < sizeof folder) {
      memcpy(folder, list, n);
      folder[n] = 0;
      if (look_in(w, folder, "")) return true;
    }
    list += n + (list[n] == ':');
  }
  return false;
}

/* Tries the dynamic loader's library of this name; false: no NVRTC, or one that does not work. */
static bool consider_loaded(walk *w, const char *name, void *handle) {
  nvrtc_search *s = w->search;
  void *symbol = dlsym(handle, "nvrtcVersion");
  int (*version)(int *, int *) = NULL;
  int major = 0, minor = 0;
  char text[200];
  memcpy(&version, &symbol, sizeof version);
  if (version == NULL || version(&major, &minor) != 0)
    snprintf(text, sizeof text, "has no nvrtcVersion");
  else if (is_too_new(s, major, minor))
    explain_too_new(s, major, minor, text, sizeof text);
  else {
    snprintf(w->out->path, sizeof w->out->path, "%s", name);
    snprintf(w->out->identity, sizeof w->out->identity, "version %d.%d", major, minor);
    return true;
  }
  add_reason(s, name, text);
  return false;
}

/* The dynamic loader knows further places, which only loading can reveal. */
static bool ask_loader(walk *w) {
  for (int i = 0; i < NUM_NAMES; i++) {
    tried_add(&w->tried, names[i]);
    if (w->number++ < w->search->next) continue;
    w->search->next = w->number;
    void *handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (handle != NULL && consider_loaded(w, names[i], handle)) return true;
  }
  return false;
}

static bool look_everywhere(walk *w) {
  static const char *const folders[] = {
      "/usr/local/cuda/lib64",      "/usr/local/cuda/lib", "/usr/lib/x86_64-linux-gnu",
      "/usr/lib/aarch64-linux-gnu", "/usr/lib64",          "/opt/cuda/lib64"};
  static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH"};
  if (look_in_list(w, getenv("LD_LIBRARY_PATH"))) return true;
  for (int i = 0; i < 2; i++) {
    const char *home = getenv(variables[i]);
    if (look_in(w, home, "/lib64") || look_in(w, home, "/lib")) return true;
  }
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
    if (look_in(w, folders[i], "")) return true;
  return ask_loader(w);
}

void nvrtc_search_start(nvrtc_search *s, const char *path, int driver_version, bool is_ptx) {
  *s = (nvrtc_search){.path = path, .driver_version = driver_version, .is_ptx = is_ptx};
  if (path == NULL) s->path = getenv("LUATTN_NVRTC"), s->from_variable = true;
  if (s->path != NULL && s->path[0] == 0) s->path = NULL;
}

static luattn_status next_named(nvrtc_search *s, nvrtc_file *out, luattn_error *err) {
  const char *from = s->from_variable ? "LUATTN_NVRTC" : "the target", *why;
  const int major = major_of(s->path);
  char text[200];
  if (!look_at(s->path, out, &why))
    return luattn_fail(err, LUATTN_COMPILE,
                       "nvrtc: '%s' (from %s): %s; name a libnvrtc.so, or leave it out to search the usual "
                       "places",
                       s->path, from, why);
  if (!is_too_new(s, major, -1)) return LUATTN_OK;
  explain_too_new(s, major, -1, text, sizeof text);
  return luattn_fail(err, LUATTN_COMPILE, "nvrtc: '%s' (from %s): %s; name an NVRTC %d, or update NVIDIA's driver",
                     s->path, from, text, s->driver_version / 1000);
}

luattn_status nvrtc_next(nvrtc_search *s, nvrtc_file *out, luattn_error *err) {
  walk w = {.search = s, .out = out};
  if (s->path != NULL) return next_named(s, out, err);
  if (look_everywhere(&w)) return LUATTN_OK;
  if (s->failed[0] != 0)
    return luattn_fail(
        err, s->lacks_arch ? LUATTN_UNSUPPORTED : LUATTN_COMPILE,
        "nvrtc: none that is here is of use: %s; install one that is, update NVIDIA's driver where it is "
        "too old, or name another with LUATTN_NVRTC",
        s->failed);
  return luattn_fail(err, LUATTN_COMPILE,
                     "nvrtc: library: not found; install the CUDA Toolkit 12 or newer, or `pip download "
                     "nvidia-cuda-nvrtc`, and "
                     "set LUATTN_NVRTC=/path/to/libnvrtc.so (tried %s)",
                     w.tried.text);
}

/* Drops the advice from the message: it applies only after the last candidate. */
bool nvrtc_pass_over(nvrtc_search *s, const luattn_error *why) {
  static const char place[] = "nvrtc: ";
  const char *text = why->message, *end = strstr(text, "; ");
  char kept[640];
  if (s->path != NULL) return false;
  if (strncmp(text, place, sizeof place - 1) == 0) text += sizeof place - 1;
  for (const char *next = end; next != NULL; next = strstr(next + 1, "; ")) end = next; /* the last one */
  snprintf(kept, sizeof kept, "%.*s", (int)(end != NULL && end > text ? (size_t)(end - text) : strlen(text)), text);
  add_failed(s, kept);
  s->lacks_arch |= why->status == LUATTN_UNSUPPORTED;
  return true;
}

luattn_status nvrtc_check_driver(const nvrtc_search *s, const nvrtc *lib, luattn_error *err) {
  char text[200];
  if (!is_too_new(s, lib->major, lib->minor)) return LUATTN_OK;
  explain_too_new(s, lib->major, lib->minor, text, sizeof text);
  return luattn_fail(err, LUATTN_COMPILE,
                     "nvrtc: '%s': %s; name an NVRTC %d with LUATTN_NVRTC, or update NVIDIA's driver", lib->path, text,
                     s->driver_version / 1000);
}

luattn_status nvrtc_open_first(nvrtc_search *s, nvrtc_file *file, nvrtc *lib, luattn_error *err) {
  for (;;) {
    luattn_error why;
    TRY(nvrtc_next(s, file, err));
    luattn_status status = nvrtc_open(file, lib, &why);
    if (status == LUATTN_OK) status = nvrtc_check_driver(s, lib, &why);
    if (status == LUATTN_OK) return status;
    if (nvrtc_pass_over(s, &why)) continue;
    if (err != NULL) *err = why;
    return status;
  }
}

luattn_status nvrtc_find(const char *path, nvrtc_file *out, luattn_error *err) {
  nvrtc_search s;
  nvrtc_search_start(&s, path, 0, false);
  return nvrtc_next(&s, out, err);
}
