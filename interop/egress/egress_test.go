// Package egress compares egress-config with kube-apiserver's own loader and validator on every fixture.
package egress

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/server/egressselector"
)

var (
	binary   = flag.String("binary", "", "path of egress-config")
	fixtures = flag.String("fixtures", "", "folder with valid, invalid and deliberate")
)

// Fewer fixtures than this means that some were not found.
const wantedFixtures = 120

// Files that fixtures name and that exist on kube-apiserver's machine. Nobody looks into them before the verdict.
var machineFiles = []string{
	"etc/kubernetes/certs/konnectivity-ca/ca.crt",
	"etc/kubernetes/certs/konnectivity-client/tls.crt",
	"etc/kubernetes/certs/konnectivity-client/tls.key",
	"ca.crt",
	"tls.crt",
	"tls.key",
}

// Where fixtures think those files are.
const machineRoot = "/etc/kubernetes/"

func TestEveryFixtureGetsTheVerdictOfKubeAPIServer(t *testing.T) {
	machine := newMachine(t)
	agreed, total := 0, 0
	for _, verdict := range []string{"valid", "invalid"} {
		for _, path := range list(t, verdict) {
			total++
			ok := t.Run(verdict+"/"+filepath.Base(path), func(t *testing.T) {
				file := machine.place(t, path)
				theirs, ours := readTheirs(file), readOurs(t, file)
				if theirs.valid() != (verdict == "valid") {
					t.Errorf("the folder says %s, kube-apiserver says %s", verdict, theirs)
				}
				for _, difference := range compare(theirs, ours) {
					t.Errorf("%s\nkube-apiserver: %s\negress-config:\n%s", difference, theirs, ours)
				}
			})
			if ok {
				agreed++
			}
		}
	}
	if total < wantedFixtures {
		t.Errorf("only %d fixtures, of at least %d", total, wantedFixtures)
	}
	fmt.Printf("egress: kube-apiserver and egress-config agree on %d of %d fixtures\n", agreed, total)
}

// What we refuse on purpose, whatever kube-apiserver makes of it: told here so that nobody takes it for an accident.
func TestDeliberateDifferencesAreWhatTheyWere(t *testing.T) {
	machine := newMachine(t)
	paths := list(t, "deliberate")
	if len(paths) == 0 {
		t.Error("no fixtures")
	}
	for _, path := range paths {
		file := machine.place(t, path)
		theirs, ours := readTheirs(file), readOurs(t, file)
		if ours.Valid || len(compare(theirs, ours)) == 0 {
			t.Errorf("%s is no difference any more", path)
		}
		fmt.Printf("egress: deliberate difference on %s: kube-apiserver says %s\n", filepath.Base(path), theirs)
	}
}

// machine is a folder that stands for kube-apiserver's machine and is the working directory.
type machine struct{ root string }

func newMachine(t *testing.T) machine {
	t.Helper()
	root := t.TempDir()
	for _, name := range machineFiles {
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, nil, 0o600))
	}
	t.Chdir(root)
	return machine{root}
}

// place copies a fixture to the machine, with the paths in it.
func (m machine) place(t *testing.T, fixture string) string {
	t.Helper()
	content, err := os.ReadFile(fixture)
	must(t, err)
	content = bytes.ReplaceAll(content, []byte(machineRoot), []byte(m.root+machineRoot))
	path := filepath.Join(m.root, "egress.yaml")
	must(t, os.WriteFile(path, content, 0o600))
	return path
}

func list(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(*fixtures, folder))
	must(t, err)
	var paths []string
	for _, entry := range entries {
		paths = append(paths, filepath.Join(*fixtures, folder, entry.Name()))
	}
	return paths
}

// theirs is what kube-apiserver says: the error of reading, or those of validating.
type theirs struct {
	read    error
	invalid field.ErrorList
}

func readTheirs(file string) theirs {
	config, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return theirs{read: err}
	}
	return theirs{invalid: egressselector.ValidateEgressSelectorConfiguration(config)}
}

func (t theirs) valid() bool { return t.read == nil && len(t.invalid) == 0 }

func (t theirs) String() string {
	switch {
	case t.read != nil:
		return "cannot read: " + t.read.Error()
	case len(t.invalid) > 0:
		return "invalid: " + t.invalid.ToAggregate().Error()
	default:
		return "valid"
	}
}

// ours is what `egress-config validate --format json` prints.
type ours struct {
	Valid    bool
	Error    string
	Findings []finding
	printed  string
}

type finding struct{ Rule, Severity, Effect, Path string }

func readOurs(t *testing.T, file string) ours {
	t.Helper()
	command := exec.Command(*binary, "validate", "--format", "json", file)
	printed, err := command.Output()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		t.Fatalf("run %v: %v", command, err)
	}
	result := ours{printed: string(printed)}
	must(t, json.Unmarshal(printed, &result))
	if result.Valid != (err == nil) {
		t.Errorf("printed valid: %v, but ended with %v", result.Valid, err)
	}
	return result
}

func (o ours) String() string { return o.printed }

// paths gives the fields that the rules blame, sorted, each once.
func (o ours) paths(rules ...string) []string {
	var paths []string
	for _, finding := range o.Findings {
		if slices.Contains(rules, finding.Rule) {
			paths = append(paths, finding.Path)
		}
	}
	return sortedSet(paths)
}

// Upstream's errors of reading that name no field, by a part of their text, and the rules that say the same.
var readErrors = []struct {
	text  *regexp.Regexp
	rules []string
}{
	{regexp.MustCompile(`^couldn't get version/kind; json parse error: json: cannot unmarshal \w+ into Go value`), []string{"R4"}},
	{regexp.MustCompile(`^couldn't get version/kind; json parse error: json: cannot unmarshal \w+ into Go struct field`), []string{"R13"}},
	{regexp.MustCompile(`^couldn't get version/kind; json parse error`), []string{"R5"}},
	{regexp.MustCompile(`^yaml: `), []string{"R5"}},
	{regexp.MustCompile(`^(unexpected EOF$|proto: )`), []string{"R17"}},
	{regexp.MustCompile(`^unsupported map key`), []string{"R5"}},
	{regexp.MustCompile(`^json: unsupported value: (NaN|[+-]Inf)`), []string{"R13"}},
	{regexp.MustCompile(`^unexpected GroupVersion string`), []string{"R8"}},
	{regexp.MustCompile(`^unexpected config type`), []string{"R10"}},
	{regexp.MustCompile(`^no kind .* is registered`), []string{"R9"}},
	{regexp.MustCompile(`(?s)^Object 'Kind' is missing`), []string{"R3", "R6"}},
	{regexp.MustCompile(`(?s)^Object 'apiVersion' is missing`), []string{"R7"}},
}

// compare says where verdict or blamed fields differ. kube-apiserver stops at the first stage that fails and we do not, so
// only the rules of that stage are compared.
func compare(theirs theirs, ours ours) []string {
	if theirs.valid() != ours.Valid {
		return []string{"the verdicts differ"}
	}
	if theirs.read == nil {
		return compareValidation(theirs.invalid, ours)
	}
	if strict, ok := runtime.AsStrictDecodingError(theirs.read); ok {
		return compareStrict(strict.Errors(), ours)
	}
	if found := wrongType.FindStringSubmatch(theirs.read.Error()); found != nil {
		return compareTypes(found[1], ours)
	}
	for _, known := range readErrors {
		if known.text.MatchString(theirs.read.Error()) {
			if len(ours.paths(known.rules...)) == 0 {
				return []string{fmt.Sprintf("we did not find %v", known.rules)}
			}
			return nil
		}
	}
	return []string{"no rule of ours is known for upstream's error"}
}

// compareTypes compares with the first value of a wrong type, all that upstream tells, which has no indexes in its path.
func compareTypes(first string, ours ours) []string {
	paths := ours.paths("R13")
	for i, path := range paths {
		paths[i] = index.ReplaceAllString(path, "")
	}
	if len(paths) == 1 && paths[0] != first || !slices.Contains(paths, first) {
		return []string{fmt.Sprintf("of wrong type: theirs %s, ours %v", first, paths)}
	}
	return nil
}

var (
	wrongType    = regexp.MustCompile(`^json: cannot unmarshal .+ into Go struct field \w+\.(\S+) of type`)
	index        = regexp.MustCompile(`\[\d+\]`)
	unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)
	duplicate    = regexp.MustCompile(`^duplicate field "(.*)"$`)
	duplicateKey = regexp.MustCompile(`line \d+: key "(.*)" already set in map`)
)

func compareStrict(strict []error, ours ours) []string {
	var unknown, duplicates, differences []string
	for _, err := range strict {
		if found := unknownField.FindStringSubmatch(err.Error()); found != nil {
			unknown = append(unknown, unquote(found[1]))
		} else if found := duplicate.FindStringSubmatch(err.Error()); found != nil {
			duplicates = append(duplicates, lastName(unquote(found[1])))
		} else if found := duplicateKey.FindAllStringSubmatch(err.Error(), -1); found != nil {
			for _, one := range found {
				duplicates = append(duplicates, lastName(unquote(one[1])))
			}
		} else {
			differences = append(differences, "upstream's strict error is not understood: "+err.Error())
		}
	}
	if mine := ours.paths("R11"); !slices.Equal(mine, sortedSet(unknown)) {
		differences = append(differences, fmt.Sprintf("unknown fields: theirs %v, ours %v", unknown, mine))
	}
	// Upstream gives no path for a duplicate in YAML.
	var mine []string
	for _, path := range ours.paths("R12") {
		mine = append(mine, lastName(path))
	}
	if mine = sortedSet(mine); !slices.Equal(mine, sortedSet(duplicates)) {
		differences = append(differences, fmt.Sprintf("duplicate fields: theirs %v, ours %v", duplicates, mine))
	}
	return differences
}

// unquote undoes %q.
func unquote(text string) string {
	if plain, err := strconv.Unquote(`"` + text + `"`); err == nil {
		return plain
	}
	return text
}

func lastName(path string) string { return path[strings.LastIndex(path, ".")+1:] }

// Upstream's path and kind for each of its rules. Real is the pattern of our path, which always is the real one.
var validation = map[string]struct {
	real string
	path string
	kind field.ErrorType
}{
	"V1":  {`connection\.proxyProtocol`, "service.connection.protocol", field.ErrorTypeNotSupported},
	"V2":  {`connection\.transport`, "service.connection.transport", field.ErrorTypeInvalid},
	"V3":  {`connection\.transport`, "service.connection.transport", field.ErrorTypeRequired},
	"V4":  {`connection\.transport`, "service.connection.tcp", field.ErrorTypeInvalid},
	"V5":  {`connection\.transport`, "service.connection.tcp", field.ErrorTypeRequired},
	"V6":  {`connection\.transport`, "service.connection.transport", field.ErrorTypeRequired},
	"V7":  {`connection\.transport\.uds`, "service.connection.uds", field.ErrorTypeRequired},
	"V8":  {`connection\.transport\.uds\.udsName`, "service.connection.udsName", field.ErrorTypeInvalid},
	"V9":  {`connection\.transport\.tcp\.url`, "service.connection.url", field.ErrorTypeInvalid},
	"V10": {`connection\.transport\.tcp\.tlsConfig`, "service.connection.tlsConfig", field.ErrorTypeInvalid},
	"V11": {`name`, "service.connection", field.ErrorTypeNotSupported},
	"V12": {`name`, "service.connection[%s]", field.ErrorTypeDuplicate},
	"V13": {`connection\.transport\.tcp\.tlsConfig`, "service.connection.tlsConfig", field.ErrorTypeRequired},
	"V14": {`connection\.transport\.tcp\.tlsConfig\.caBundle`, "service.connection.tlsConfig.caBundle", field.ErrorTypeInvalid},
	"V15": {`connection\.transport\.tcp\.tlsConfig\.clientCert`, "service.connection.tlsConfig.clientCert", field.ErrorTypeInvalid},
	"V16": {`connection\.transport\.tcp\.tlsConfig\.clientCert`, "service.connection.tlsConfig.clientCert", field.ErrorTypeInvalid},
	"V17": {`connection\.transport\.tcp\.tlsConfig\.clientKey`, "service.connection.tlsConfig.clientKey", field.ErrorTypeInvalid},
	"V18": {`connection\.transport\.tcp\.tlsConfig\.clientKey`, "service.connection.tlsConfig.clientKey", field.ErrorTypeInvalid},
}

// compareValidation compares how often each field is blamed for each kind of fault.
func compareValidation(invalid field.ErrorList, ours ours) []string {
	var differences, theirs, mine []string
	for _, err := range invalid {
		theirs = append(theirs, fmt.Sprintf("%s: %s", err.Field, err.Type))
	}
	for _, finding := range ours.Findings {
		if finding.Severity != "error" {
			continue
		}
		rule, known := validation[finding.Rule]
		match := regexp.MustCompile(`^egressSelections\[(\d+)\]\.` + rule.real + `$`).FindStringSubmatch(finding.Path)
		if !known || match == nil {
			differences = append(differences, fmt.Sprintf("%s blames %s", finding.Rule, finding.Path))
			continue
		}
		path := strings.Replace(rule.path, "%s", match[1], 1)
		mine = append(mine, fmt.Sprintf("%s: %s", path, rule.kind))
	}
	slices.Sort(theirs)
	slices.Sort(mine)
	if !slices.Equal(theirs, mine) {
		differences = append(differences, fmt.Sprintf("theirs:\n  %s\nours:\n  %s", strings.Join(theirs, "\n  "), strings.Join(mine, "\n  ")))
	}
	return differences
}

func sortedSet(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
