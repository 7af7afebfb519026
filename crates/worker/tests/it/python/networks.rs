//! Neural networks without a line of loading code, with stand-ins for PyTorch and TensorFlow, whose packages are gigabytes. Real ones are in
//! tests/e2e/test_networks.py. Needs the environment that `cargo xtask test` makes; without it these tests say so and pass.

use serde_json::{Value, json};

use super::{
    card::{Card, Running, with_packages},
    frameworks::made,
};

/// PyTorch as far as its models are loaded and called here.
const TORCH: &str = "
import numpy
float32, float64, int64, bfloat16 = numpy.dtype('f4'), numpy.dtype('f8'), numpy.dtype('i8'), numpy.dtype('V2')
gradients = True
class no_grad:
    def __enter__(self):
        global gradients
        gradients = False
    def __exit__(self, *error):
        global gradients
        gradients = True
class cuda:
    @staticmethod
    def is_available(): return True
class Tensor:
    def __init__(self, values, bound=('graph', 'gpu')): self.values, self.bound, self.dtype = values, set(bound), values.dtype
    def detach(self): return Tensor(self.values, self.bound - {'graph'})
    def cpu(self): return Tensor(self.values, self.bound - {'gpu'})
    def is_floating_point(self): return self.dtype.kind == 'f'
    def numpy(self):
        assert not self.bound
        return self.values
def as_tensor(values, dtype=None, device='cpu'):
    assert device == 'cuda' and values.flags.writeable
    return Tensor(numpy.asarray(values, dtype))
class nn:
    class Module:
        training, takes = True, float32
        def eval(self): self.training = False
        def parameters(self): return [Tensor(numpy.zeros(1, int64)), Tensor(numpy.zeros(1, self.takes))]
        def buffers(self): return []
        def __call__(self, tensor):
            assert not self.training and not gradients
            assert tensor.values.dtype == self.takes and tensor.values.ndim == 2, tensor.values
            return Tensor(tensor.values.sum(axis=1))
class Double(nn.Module):
    takes = float64
class Embedding(nn.Module):
    def __call__(self, tensor):
        if tensor.dtype != int64:
            raise RuntimeError(\"Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int\")
        return (Tensor(tensor.values.sum(axis=1)),)
class Named(nn.Module):
    def __call__(self, tensor): return {'sum': super().__call__(tensor), 'rows': tensor}
class Pair(nn.Module):
    def __call__(self, tensor): return super().__call__(tensor), None
class Total(nn.Module):
    def __call__(self, tensor): return Tensor(tensor.values.sum())
def content(path):
    with open(path) as file: return file.read()
class jit:
    @staticmethod
    def load(path, map_location=None):
        if content(path) != 'script': raise RuntimeError('PytorchStreamReader failed reading zip archive')
        assert map_location == 'cuda'
        return nn.Module()
pickled = {'module': nn.Module, 'double': Double, 'embedding': Embedding, 'named': Named, 'pair': Pair, 'total': Total}
def load(path, map_location=None, weights_only=True):
    assert map_location == 'cuda' and not weights_only
    if content(path) == 'weights': return {'layer': 1}
    if content(path) == 'foreign': raise AttributeError(\"Can't get attribute 'Net' on <module 'berth.host'>\")
    if content(path) not in pickled: raise ValueError('invalid load key')
    return pickled[content(path)]()
";

/// TensorFlow, likewise. A Keras file names the shape of a row, and its outputs.
const TENSORFLOW: &str = "
import numpy, os
class DType:
    as_numpy_dtype = numpy.float32
class Tensor:
    def __init__(self, values): self.values = values
    def numpy(self): return self.values
class Shape(list):
    rank = 2
    def as_list(self): return list(self)
class Spec:
    dtype, shape = DType(), Shape([None, 4])
def convert_to_tensor(values): return Tensor(values)
class keras:
    class backend:
        @staticmethod
        def backend(): return 'jax'
        @staticmethod
        def floatx(): return 'float32'
    class Input:
        def __init__(self, name, shape): self.name, self.shape, self.dtype = name, shape, 'float32'
    class Model:
        def __init__(self, shapes, outputs):
            self.inputs = [keras.Input('in_%d' % at, [None, *shape]) for at, shape in enumerate(shapes)]
            self.output_names = outputs
        def predict_on_batch(self, rows):
            assert rows.dtype == numpy.float32 and list(rows.shape[1:]) == self.inputs[0].shape[1:]
            assert len(rows) in (1, 2, 4, 8, 16), 'no shape is compiled for other numbers of rows'
            sums = rows.reshape(len(rows), -1).sum(axis=1)
            return [sums + at for at in range(len(self.output_names))]
    class models:
        @staticmethod
        def load_model(path, compile=True):
            text = open(path).read()
            if text == 'own layer':
                raise TypeError('long' * 1000 + \"Exception encountered: Could not locate class 'Own' Full object config: {}\")
            if not text.startswith('keras'): raise ValueError('File format not supported')
            assert not compile
            shapes, _, outputs = text[5:].partition('>')
            return keras.Model([[int(n) for n in shape.split('x')] for shape in shapes.split()], outputs.split() or ['one'])
class saved_model:
    class Function:
        def __init__(self, *inputs): self.structured_input_signature = ((), {name: Spec() for name in inputs})
        def __call__(self, *, dense_input):
            assert dense_input.values.dtype == numpy.float32
            return {'dense': Tensor(dense_input.values.sum(axis=1))}
    class Loaded:
        def __init__(self, signatures): self.signatures = {name: saved_model.Function('dense_input') for name in signatures}
    @staticmethod
    def load(path):
        return saved_model.Loaded(open(os.path.join(path, 'saved_model.pb')).read().split())
";

/// A framework, and a stand-in for its module.
struct Framework {
    /// The format of its models.
    format: &'static str,
    module: &'static str,
    /// Source text of the stand-in.
    text: &'static str,
}

const PYTORCH: Framework = Framework { format: "pytorch", module: "torch", text: TORCH };
const KERAS: Framework = Framework { format: "tensorflow", module: "tensorflow", text: TENSORFLOW };

/// The card of a model without a card.
fn of_format(framework: Framework, name: &'static str, artifact: &[u8]) -> Card {
    let Framework { format, module, text } = framework;
    let function = |name: &str| json!({"module": "berth.estimators", "function": name});
    let numbers = json!({"type": "array", "minItems": 4, "maxItems": 4, "items": {"type": "number"}});
    let input = json!({"type": "object", "required": ["features"], "properties": {"features": numbers}});
    let mut card = Card::new("")
        .with("/code/entrypoint", json!(format!("berth.estimators:load_{format}")))
        .with("/preprocessing", function("to_rows"))
        .with("/postprocessing", function("to_answer"))
        .with("/interface/input_schema", input)
        .with("/interface/output_schema", json!({"type": "object", "required": ["prediction"]}))
        .with("/interface/batch_size", json!(16));
    card.files.push((format!("{module}.py"), text.to_owned()));
    Card { artifact: artifact.to_vec(), artifact_name: name, python: with_packages().expect("checked"), ..card }
}

/// A tar archive of a SavedModel with these signatures.
fn archive(signatures: &str) -> Option<Vec<u8>> {
    made(&format!(
        "
import io, sys, tarfile
with tarfile.open(sys.argv[1], 'w') as tar:
    entry, content = tarfile.TarInfo('export/saved_model.pb'), b'{signatures}'
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
"
    ))
}

/// The predictions for rows whose sums are 1 to 8, asked at once.
async fn predictions(running: &Running) -> Vec<Value> {
    let calls = (0..8).map(|n| running.call(json!({"features": [n, 0, 0, 1]})));
    let answers = futures::future::join_all(calls).await;
    answers.into_iter().map(|answer| answer.expect("an answer")["prediction"].take()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn models_of_pytorch_and_tensorflow_are_called_as_these_want_it() {
    let (Some(default), Some(only)) = (archive("other serving_default"), archive("only")) else { return };
    for (framework, name, artifact) in [
        (PYTORCH, "model.pt", &b"script"[..]),
        (PYTORCH, "model.pth", b"module"),
        (PYTORCH, "model.pt", b"double"),
        (PYTORCH, "model.pt", b"embedding"),
        (KERAS, "model.keras", b"keras4"),
        (KERAS, "model.h5", b"keras2x2"),
        (KERAS, "model.tar", &default[..]),
        (KERAS, "model.tar", &only[..]),
    ] {
        let running = of_format(framework, name, artifact).start();
        let of = String::from_utf8_lossy(artifact);
        let running = running.unwrap_or_else(|error| panic!("{name} {of}: {error:?}"));
        for (n, prediction) in predictions(&running).await.into_iter().enumerate() {
            assert_eq!(prediction.as_f64(), Some(n as f64 + 1.0), "{name} {of}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_outputs_have_their_names() {
    let Some(_) = with_packages() else { return };
    let running = of_format(PYTORCH, "model.pt", b"named").start().expect("it loads");
    for (n, prediction) in predictions(&running).await.into_iter().enumerate() {
        assert_eq!(prediction, json!({"sum": n as f64 + 1.0, "rows": [n as f64, 0.0, 0.0, 1.0]}));
    }
    let running = of_format(KERAS, "model.keras", b"keras4>first second").start().expect("it loads");
    for (n, prediction) in predictions(&running).await.into_iter().enumerate() {
        assert_eq!(prediction, json!({"first": n as f64 + 1.0, "second": n as f64 + 2.0}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_takes_places_refuses_fractions() {
    let Some(_) = with_packages() else { return };
    let running = of_format(PYTORCH, "model.pt", b"embedding").start().expect("it loads");
    let refused = running.call(json!({"features": [0.5, 0, 0, 1]})).await.expect_err("a fraction").to_string();
    assert!(refused.contains("takes whole numbers"), "{refused}");
}

#[test]
fn what_rows_of_numbers_cannot_ask_is_told_when_it_is_loaded() {
    let (Some(several), Some(none)) = (archive("one two"), archive("")) else { return };
    for (framework, name, artifact, said) in [
        (PYTORCH, "model.pt", &b"weights"[..], "holds a dict, not a module"),
        (PYTORCH, "model.pt", b"nothing", "it is no TorchScript, and torch.load cannot read it: invalid load key"),
        (PYTORCH, "model.pt", b"foreign", "a pickle holds no code: save the module as TorchScript"),
        (PYTORCH, "model.pt", b"pair", "the module returned a tuple, not one tensor"),
        (PYTORCH, "model.pt", b"total", "not a result for each"),
        (KERAS, "model.keras", b"nothing", "a .keras file is a zip archive"),
        (KERAS, "model.h5", b"nothing", "keras cannot read the artifact: File format not supported"),
        (KERAS, "model.h5", b"own layer", "Could not locate class 'Own'; write a model card"),
        (KERAS, "model.keras", b"keras2 2", "the model has the inputs 'in_0', 'in_1'"),
        (KERAS, "model.keras", b"keras3", "a row has 4 numbers, and the model takes 3"),
        (KERAS, "model.keras", b"keras3x2", "the model takes 3 × 2: 6"),
        (KERAS, "model.tar", &several[..], "the signatures 'one', 'two'"),
        (KERAS, "model.tar", &none[..], "has no signature"),
    ] {
        let error = of_format(framework, name, artifact).fails();
        let told = format!("{} {}", error.message, error.trace.as_deref().unwrap_or_default());
        assert!(told.contains(said), "{told}");
    }
}
