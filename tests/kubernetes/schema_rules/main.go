// Checks objects against the rules of custom resources as an API server of today does, with its own code. Standard input: definitions, and
// objects as they are and were. Standard output: what it says of the definitions, and of each object.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/runtime"
	numbers "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

type question struct {
	Definitions []v1.CustomResourceDefinition `json:"definitions"`
	Objects     []struct {
		Kind string         `json:"kind"`
		Old  map[string]any `json:"old"`
		New  map[string]any `json:"new"`
	} `json:"objects"`
}

type answer struct {
	Definitions []string `json:"definitions"`
	Objects     []string `json:"objects"`
}

type check struct {
	schema *schema.Structural
	rules  *cel.Validator
}

func main() {
	var asked question
	decoder := json.NewDecoder(os.Stdin)
	decoder.UseNumber()
	must(decoder.Decode(&asked))
	scheme := runtime.NewScheme()
	install.Install(scheme)
	said := answer{Definitions: []string{}, Objects: []string{}}
	checks := map[string]check{}
	for i := range asked.Definitions {
		written := &asked.Definitions[i]
		scheme.Default(written)
		var definition apiextensions.CustomResourceDefinition
		must(scheme.Convert(written, &definition, nil))
		definition.Status.StoredVersions = []string{"v1"}
		for _, problem := range validation.ValidateCustomResourceDefinition(context.Background(), &definition) {
			said.Definitions = append(said.Definitions, problem.Error())
		}
		kind := definition.Spec.Names.Kind
		stored, err := apiextensions.GetSchemaForVersion(&definition, "v1")
		must(err)
		structural, err := schema.NewStructural(stored.OpenAPIV3Schema)
		must(err)
		checks[kind] = check{structural, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	}
	for _, object := range asked.Objects {
		must(numbers.ConvertMapNumbers(object.Old, 0))
		must(numbers.ConvertMapNumbers(object.New, 0))
		var old any
		if object.Old != nil {
			old = object.Old
		}
		check := checks[object.Kind]
		problems, _ := check.rules.Validate(context.Background(), field.NewPath(""), check.schema, object.New, old, celconfig.RuntimeCELCostBudget)
		text := ""
		for _, problem := range problems {
			text += problem.Error() + "\n"
		}
		said.Objects = append(said.Objects, text)
	}
	must(json.NewEncoder(os.Stdout).Encode(said))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
