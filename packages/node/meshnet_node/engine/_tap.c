/* The evaluation callback of tap.py, in C.
 *
 * llama.cpp asks it about every node of its graph, some 27 to 45 for each layer. In Python each question costs a
 * third of a microsecond, and more where the event loop holds the interpreter's lock just then; here it costs
 * nothing. It knows neither ggml's headers nor its structures: tap.py hands over the functions it needs.
 *
 * The Python module around it only exists so that every build tool knows how to compile and install it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>

/* Laid out as tap.py's _TapState. */
struct tap_state {
    const char *(*name_of)(const void *tensor);
    size_t (*bytes_of)(const void *tensor);
    void (*copy)(const void *tensor, void *to, size_t offset, size_t size);
    char wanted[64];
    char *rows;
    size_t room_bytes;
    size_t filled_bytes;
};

static bool on_node(void *tensor, bool ask, void *user_data) {
    struct tap_state *state = user_data;
    if (ask) {
        return strcmp(state->name_of(tensor), state->wanted) == 0;
    }
    size_t size = state->bytes_of(tensor);
    if (state->filled_bytes + size <= state->room_bytes) {
        state->copy(tensor, state->rows + state->filled_bytes, 0, size);
    }
    state->filled_bytes += size;
    return false; /* the graph ends here: no final norm, no output matrix */
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_tap", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tap(void) {
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddObject(made, "ON_NODE", PyLong_FromVoidPtr((void *)on_node)) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
