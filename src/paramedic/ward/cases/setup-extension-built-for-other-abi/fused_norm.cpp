#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace c10::detail {
[[noreturn]] void torchCheckFail(const char *func, const char *file, uint32_t line, const std::string &message);
}

static PyObject *normalise_rows(PyObject *, PyObject *args) {
  Py_buffer rows;
  int width;
  if (!PyArg_ParseTuple(args, "w*i", &rows, &width)) return nullptr;
  if (width <= 0) c10::detail::torchCheckFail(__func__, __FILE__, __LINE__, std::string("width must be positive"));
  auto *value = static_cast<float *>(rows.buf);
  auto *end = value + rows.len / sizeof(float);
  for (; value + width <= end; value += width) {
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += value[i] * value[i];
    for (int i = 0; i < width; ++i) value[i] /= std::sqrt(sum);
  }
  PyBuffer_Release(&rows);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"normalise_rows", normalise_rows, METH_VARARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "fused_norm", "", -1, methods};
PyMODINIT_FUNC PyInit_fused_norm() { return PyModule_Create(&definition); }
