// A torch device without hardware: "fake:0" and "fake:1" in the memory of the CPU, by PyTorch's PrivateUse1 mechanism.
//
// Operators run on the CPU, after the checks of CUDA that the CPU does not make. A listener in Python hears of each
// operation for which a GPU would make the host wait. Kernels, streams and rounding of a GPU are not imitated.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <string>
#include <unordered_set>

namespace {

using at::Tensor;
constexpr auto kFake = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_fake(const Tensor& tensor) { return tensor.device().type() == kFake; }

// --- what a GPU would launch and wait for ---------------------------------------------------------------------------

std::atomic<int64_t> launches{0};
std::atomic<bool> listening{false};
py::object listener;             // called with the name of an operation; guarded by the GIL
thread_local int depth = 0;      // above 0, an operator is at work, and its own copies do not count

struct Launch {
  Launch() {
    if (depth++ == 0) ++launches;
  }
  ~Launch() { --depth; }
};

void report_wait(const std::string& operation) {
  if (depth > 0 || !listening) return;
  py::gil_scoped_acquire gil;
  if (listening) listener(operation);
}

// Their output's size or a check of their result is known to the GPU only.
const std::unordered_set<std::string> kWaiting{
    "nonzero",       "masked_select", "_unique2",    "unique_dim",  "unique_consecutive", "bincount", "equal",
    "repeat_interleave", "multinomial", "_linalg_eigh", "_linalg_svd", "linalg_lstsq",  "histc",    "_to_sparse",
};

// --- memory, devices, generators ------------------------------------------------------------------------------------

thread_local c10::DeviceIndex current = 0;

std::atomic<int64_t> in_use{0}, peak{0};  // bytes

constexpr size_t kHeader = 64;  // before each block: its size

void release(void* data) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - kHeader;
  in_use -= *reinterpret_cast<int64_t*>(block);
  c10::GetCPUAllocator()->raw_deallocate(block);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kFake, current);
    if (bytes == 0) return {nullptr, device};
    char* block = static_cast<char*>(c10::GetCPUAllocator()->raw_allocate(kHeader + bytes));
    *reinterpret_cast<int64_t*>(block) = bytes;
    in_use += bytes;
    if (in_use > peak) peak = in_use.load();
    void* data = std::memset(block + kHeader, 0xff, bytes);  // NaN, or -1: memory of a GPU is not zero
    return {data, data, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kFake, &allocator);

void set_current(c10::DeviceIndex index) {
  TORCH_CHECK(index < kDevices, "invalid device ordinal: there are ", int(kDevices), " fake devices");
  if (index >= 0) current = index;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }
  c10::Device getDevice() const override { return {kFake, current}; }
  void setDevice(c10::Device device) const override { set_current(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeEvent(void*) const override { report_wait("synchronize"); }
  void synchronizeStream(const c10::Stream&) const override { report_wait("synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { report_wait("synchronize"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current;
    set_current(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};

// --- operators on the memory itself ---------------------------------------------------------------------------------

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value());
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value());
  return at::detail::empty_strided_generic(
      size, stride, &allocator, kKeys, c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

Tensor on_host(const Tensor& tensor) {  // the same memory
  if (!tensor.defined() || !is_fake(tensor)) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (from.numel() == 0) return to;
  if (!is_fake(to)) report_wait("copy to host");  // its values cannot be read before
  if (!is_fake(from) && !non_blocking) report_wait("copy to device");
  const Launch launch;
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const Tensor& self) {
  report_wait("item");
  const Launch launch;
  return on_host(self).item();
}

// --- all other operators --------------------------------------------------------------------------------------------

// Several devices raise, except for numbers: CUDA takes a 0-dimensional tensor on the CPU wherever it takes a number.
// Indices on the CPU are copied to the GPU, and masks are counted there, by `nonzero` in `index`: the host waits.
void check_like_cuda(const std::string& name, const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  std::optional<c10::Device> device;
  bool integers = false;
  const auto arguments = torch::jit::last(stack, schema.arguments().size());
  const auto check = [&](const Tensor& tensor, const std::string& argument) {
    c10::impl::check_and_update_common_device(device, tensor, name.c_str(), argument.c_str());
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = arguments[i];
    const auto& argument = schema.arguments()[i].name();
    if (value.isTensor() && value.toTensor().defined()) {
      const auto tensor = value.toTensor();
      integers |= at::isIntegralType(tensor.scalar_type(), true);
      if (is_fake(tensor) || tensor.dim() > 0) check(tensor, argument);
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) check(tensor, argument);
    } else if (value.isOptionalTensorList()) {
      const bool fills = arguments.size() > 2 && arguments[2].isTensor() && arguments[2].toTensor().numel() == 1;
      for (const std::optional<Tensor>& index : value.toOptionalTensorVector()) {
        if (!index || !index->defined()) continue;
        if (!is_fake(*index)) report_wait(name + " by indices on the CPU");
        if (name != "index" && index->scalar_type() == at::kBool && !fills) report_wait(name + " by a mask");
      }
    } else if (value.isGenerator()) {
      TORCH_CHECK(false, "Expected a 'fake' device type for generator but found '", value.toGenerator().device().type(), "'");
    }
  }
  static const std::unordered_set<std::string> products{"mm", "addmm", "bmm", "baddbmm", "dot", "mv", "addmv"};
  TORCH_CHECK(!integers || !products.count(name), "\"", name, "_cuda\" not implemented for integers");
  if (name == "native_batch_norm_backward") {
    const auto input = arguments[1].toTensor();
    const auto saved = arguments[5].toOptional<Tensor>();
    const bool last = input.is_contiguous() ? input.stride(1) == 1 : input.is_contiguous(at::MemoryFormat::ChannelsLast);
    TORCH_CHECK(!last || (saved && saved->defined()), "save_mean should always be defined for a channels-last input");
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto name = op.schema().name().substr(sizeof("aten::") - 1);
  if (name.back() == '_' && name.front() != '_') name.pop_back();  // in place
  check_like_cuda(name, op.schema(), *stack);
  if (kWaiting.count(name)) report_wait(name);
  const Launch launch;
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

// Convolutions reach a new device under names that the CPU does not know.
void check_same_device(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& other) {
  std::optional<c10::Device> device;
  for (const auto& tensor : {std::optional(input), std::optional(weight), other}) {
    c10::impl::check_and_update_common_device(device, tensor, "convolution", "weight");
  }
}

Tensor convolution(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  check_same_device(input, weight, bias);
  const Launch launch;
  const auto result = at::convolution(
      on_host(input), on_host(weight), on_host(bias.value_or(Tensor())), stride, padding, dilation, transposed, output_padding,
      groups);
  return result.to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  check_same_device(input, weight, gradient);
  const Launch launch;
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [of_input, of_weight, of_bias] = at::convolution_backward(
      on_host(gradient), on_host(input), on_host(weight), at::OptionalIntArrayRef(channels), stride, padding, dilation,
      transposed, output_padding, groups, mask);
  const auto back = [&](const Tensor& made) { return made.defined() ? made.to(input.device()) : made; };
  return {back(of_input), back(of_weight), back(of_bias)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

// --- autocast, with the lists of CUDA -------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define IN_HALF(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define IN_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define INTO_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define IN_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(IN_HALF)
  AT_FORALL_FP32(IN_FLOAT)
  AT_FORALL_FP32_SET_OPT_DTYPE(INTO_FLOAT)
  AT_FORALL_PROMOTE(IN_WIDEST)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("register_hooks", [] { at::RegisterPrivateUse1HooksInterface(new Hooks()); });
  m.def("device_count", [] { return int(kDevices); });
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](int index) { set_current(c10::DeviceIndex(index)); });
  m.def("launches", [] { return launches.load(); });
  m.def("reset_peak_memory", [] { peak = in_use.load(); });
  m.def("peak_memory", [] { return peak.load(); });
  m.def("listen", [](py::object function) {
    listening = !function.is_none();
    listener = std::move(function);
  });
}
